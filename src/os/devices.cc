#include "os/devices.h"

#include <sched.h>

#include <algorithm>
#include <filesystem>
#include <thread>

#include "core/base/text.h"

namespace yoke {

int usable_cores() {
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));  // more cores than cpu_set_t holds
}

int visible_gpus(const Environment& environment, const std::string& root) {
  int devices = 0;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(root, ignored)) {
    std::string name = entry.path().filename().string();
    if (name.starts_with("nvidia") && parse_integer(name.substr(6))) ++devices;  // nvidia0, not nvidiactl
  }
  auto listed = find_variable(environment, "CUDA_VISIBLE_DEVICES");
  if (!listed) return devices;
  int visible = 0;
  for (const std::string& entry : split(*listed, ',')) {
    if (trim(entry).empty() || trim(entry) == "-1") break;  // CUDA stops reading there
    ++visible;
  }
  return std::min(visible, devices);
}

}  // namespace yoke
