#include "os/devices.h"

#include "os/testing.h"

namespace yoke {
namespace {

TEST(Devices, Cores) { EXPECT_GE(usable_cores(), 1); }

TEST(Devices, Gpus) {
  TestFolder dev;
  EXPECT_EQ(visible_gpus({}, dev.path()), 0);
  for (const char* name : {"nvidia0", "nvidia1", "nvidia12", "nvidiactl", "nvidia-uvm", "null"}) dev.write(name, "");
  EXPECT_EQ(visible_gpus({}, dev.path()), 3);
  EXPECT_EQ(visible_gpus({{"CUDA_VISIBLE_DEVICES", "1,0"}}, dev.path()), 2);
  EXPECT_EQ(visible_gpus({{"CUDA_VISIBLE_DEVICES", ""}}, dev.path()), 0);
  EXPECT_EQ(visible_gpus({{"CUDA_VISIBLE_DEVICES", "0,-1,1"}}, dev.path()), 1);
  EXPECT_EQ(visible_gpus({{"CUDA_VISIBLE_DEVICES", "0"}}, dev.path("absent")), 0);
}

}  // namespace
}  // namespace yoke
