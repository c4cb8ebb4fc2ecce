#include "cli/gpu_options.hpp"

#include "ring_attention/core/error.hpp"

namespace ring_attention {

void declare_gpu_options(CommandLine& command, GpuOptions& options) {
  command.section("GPU");
  command.choice("--device", options.device, {"cpu", "cuda"}, "What computes");
  command.choice("--type", options.type, {"fp32", "bf16", "fp16"},
                 "Type of q, k, v and dO on the GPU; sums and results are float32");
  command.option("--kernel", options.kernel, "Kernel of the forward; auto takes the fastest that fits");
  command.choice("--ring", options.ring, {"auto", "nccl", "staged"},
                 "From GPU to GPU with NCCL, or through the hosts' memory with MPI");
  command.flag("--share-gpu", options.share_gpu, "More ranks than GPUs, to try things out: correctness only");
}

void validate_device(const GpuOptions& options, const std::vector<DeviceFlag>& cpu,
                     const std::vector<DeviceFlag>& gpu) {
  const GpuOptions defaults;
  const bool on_gpu = options.device == "cuda";
  std::vector<DeviceFlag> idle = on_gpu ? cpu : gpu;
  if (!on_gpu) {
    idle.push_back({"--type", options.type != defaults.type});
    idle.push_back({"--kernel", options.kernel != defaults.kernel});
    idle.push_back({"--ring", options.ring != defaults.ring});
    idle.push_back({"--share-gpu", options.share_gpu});
  }
  for (const DeviceFlag& flag : idle)
    if (flag.given)
      throw InputError(std::string(flag.name) + " goes with --device " + (on_gpu ? "cpu" : "cuda") +
                       flag.remark);
}

}  // namespace ring_attention
