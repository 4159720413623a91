#include "train/comm/device.h"

#ifdef YOKE_CUDA
#include <c10/cuda/CUDAFunctions.h>
#endif

namespace yoke {
namespace {

#ifdef YOKE_CUDA
constexpr bool built_for_cuda = true;
int gpu_count() { return c10::cuda::device_count(); }
void use_gpu(int index) { c10::cuda::set_device(static_cast<c10::DeviceIndex>(index)); }
#else
constexpr bool built_for_cuda = false;
int gpu_count() { return 0; }
void use_gpu(int) {}
#endif

}  // namespace

Result<ChosenDevice> choose_device(DeviceKind kind, int local_rank) {
  if (kind == DeviceKind::cpu) return ChosenDevice{};
  int gpus = gpu_count();
  if (gpus > local_rank) {
    use_gpu(local_rank);
    return ChosenDevice{c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(local_rank)), Transport::nccl, ""};
  }
  std::string missing = !built_for_cuda ? "this build of yoke-worker has no CUDA"
                        : gpus == 0     ? "this machine has no GPU that CUDA can use"
                                        : fmt::format("there are {} GPUs, and this is local rank {}", gpus, local_rank);
  if (kind == DeviceKind::cuda)
    return fail(ErrorKind::environment, "cluster.device is \"cuda\", but " + missing,
                "choose device = \"cpu\", as many ranks as GPUs, or a build with the preset `cuda`");
  if (gpus > 0) return fail(ErrorKind::environment, missing, "set cluster.per_node to the number of GPUs");
  return ChosenDevice{c10::Device(c10::kCPU), Transport::cpu, built_for_cuda ? missing + ": training on the CPU" : ""};
}

}  // namespace yoke
