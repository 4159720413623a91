#include "os/memory_limit.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <new>
#include <system_error>

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

namespace {

// "; ulimit -d is 146 MiB": the limit of this process, else that of all together.
std::string limit_text() {
  std::optional<MemoryLimit> limit = process_memory_limit();
  if (!limit) limit = shared_memory_limit();
  return limit ? fmt::format("{} is {}", limit->what, format_bytes(limit->bytes.value)) : "the system refused it";
}

}  // namespace

Error out_of_memory() {
  return {ErrorKind::environment, "out of memory: " + limit_text(),
          "raise that limit, or lower what is needed: train.micro_batch, train.recompute, parallel.zero"};
}

std::optional<Error> refusal(const std::exception& exception) {
  if (dynamic_cast<const std::bad_alloc*>(&exception) != nullptr) return out_of_memory();
  // libtorch's own allocator has no type for it: "DefaultCPUAllocator: can't allocate memory: you tried to ..."
  if (std::string_view(exception.what()).find("can't allocate memory") != std::string_view::npos)
    return out_of_memory();
  const auto* system = dynamic_cast<const std::system_error*>(&exception);
  if (system == nullptr) return std::nullopt;
  if (system->code() == std::errc::not_enough_memory) return out_of_memory();
  if (system->code() != std::errc::resource_unavailable_try_again) return std::nullopt;
  return Error{
      ErrorKind::environment,
      fmt::format("the system refused a thread, or the memory for it ({}); {}", system->code().message(), limit_text()),
      "raise the limit on memory or threads: ulimit -d, -v and -u, the cgroup's memory.max and pids.max"};
}

}  // namespace yoke
