#include "os/memory_limit.h"

#include <sys/resource.h>

#include "core/base/text.h"
#include "os/file.h"

namespace yoke {
namespace {

void tighten(std::optional<MemoryLimit>& limit, double bytes, const char* what) {
  if (!limit || bytes < limit->bytes.value) limit = MemoryLimit{Bytes(bytes), what};
}

}  // namespace

std::optional<MemoryLimit> shared_memory_limit(const std::string& root) {
  std::optional<MemoryLimit> limit;
  for (const std::string& line : split(read_file(root + "/proc/meminfo").value_or(""), '\n'))
    if (line.starts_with("MemTotal:")) {
      std::string_view number = trim(std::string_view(line).substr(9));
      if (auto kib = parse_number(number.substr(0, number.find(' '))))
        tighten(limit, *kib * 1024, "this machine's memory");
    }
  for (const std::string& line : split(read_file(root + "/proc/self/cgroup").value_or(""), '\n')) {
    if (!line.starts_with("0::/")) continue;
    // Each folder above may limit it too.
    for (std::string path = line.substr(3); !path.empty(); path = path.substr(0, path.rfind('/')))
      if (auto text = read_file(root + "/sys/fs/cgroup" + path + "/memory.max"))
        if (auto bytes = parse_number(trim(*text))) tighten(limit, *bytes, "the cgroup's memory.max");
  }
  return limit;
}

std::optional<MemoryLimit> process_memory_limit() {
  std::optional<MemoryLimit> limit;
  for (auto [resource, what] : {std::pair(RLIMIT_AS, "ulimit -v"), std::pair(RLIMIT_DATA, "ulimit -d")}) {
    rlimit value{};
    if (getrlimit(resource, &value) == 0 && value.rlim_cur != RLIM_INFINITY)
      tighten(limit, static_cast<double>(value.rlim_cur), what);
  }
  return limit;
}

}  // namespace yoke
