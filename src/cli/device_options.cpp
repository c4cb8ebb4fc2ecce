#include "cli/device_options.hpp"

#include <cmath>

#include "ring_attention/core/error.hpp"
#include "ring_attention/cpu/isa.hpp"

namespace ring_attention {

std::vector<std::string> isa_choices() {
  std::vector<std::string> names{"auto"};
  for (const Isa isa : available_isas()) names.emplace_back(name_of(isa));
  return names;
}

void declare_device_options(CommandLine& command, DeviceOptions& options) {
  command.choice("--transport", options.transport, {"auto", "overlapped", "odd-even", "nccl", "staged"},
                 "What moves K,V. CPU: overlapped (auto), while ranks compute, or odd-even, in between. "
                 "GPU: nccl (auto, where it is built in), or staged, through the hosts' memory with MPI");
  command.renamed("--ring", "--transport");
  command.section("GPU");
  command.choice("--device", options.device, {"cpu", "cuda"}, "What computes");
  command.choice("--type", options.type, {"fp32", "bf16", "fp16"},
                 "Type of q, k, v and dO on the GPU; sums and results are float32");
  command.option("--kernel", options.kernel, "Kernel of the forward; auto takes the fastest that fits");
  command.flag("--share-gpu", options.share_gpu, "More ranks than GPUs, to try things out: correctness only");
}

void validate_device(const DeviceOptions& options) {
  struct Flag {
    const char* name;
    bool given;
    const char* remark = "";
  };
  const DeviceOptions defaults;
  const std::string& transport = options.transport;
  const std::string transport_flag = "--transport " + transport;
  const Flag of_cpu[] = {{"--engine", options.engine != defaults.engine},
                         {"--threads", options.threads != defaults.threads},
                         {"--isa", options.isa != defaults.isa},
                         {"--block", options.block != defaults.block},
                         {transport_flag.c_str(), transport == "overlapped" || transport == "odd-even"},
                         {"--wire", options.wire != defaults.wire, " (K,V travel in --type)"}};
  const Flag of_gpu[] = {{"--type", options.type != defaults.type},
                         {"--kernel", options.kernel != defaults.kernel},
                         {"--backward-kernel", options.backward_kernel != defaults.backward_kernel},
                         {transport_flag.c_str(), transport == "nccl" || transport == "staged"},
                         {"--share-gpu", options.share_gpu}};
  const auto refuse = [](const auto& flags, const char* device) {
    for (const Flag& flag : flags)
      if (flag.given)
        throw InputError(std::string(flag.name) + " goes with --device " + device + flag.remark);
  };
  if (options.device == "cuda")
    refuse(of_cpu, "cpu");
  else
    refuse(of_gpu, "cuda");
  if (!(options.timeout > 0) || !std::isfinite(options.timeout))
    throw InputError("--timeout must be above 0 seconds");
}

}  // namespace ring_attention
