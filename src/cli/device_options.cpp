#include "cli/device_options.hpp"

#include <algorithm>
#include <cmath>

#include "ring_attention/core/error.hpp"
#include "ring_attention/cpu/isa.hpp"

namespace ring_attention {

void declare_job_options(CommandLine& command, JobOptions& options) {
  command.section("Job");
  command.option("--timeout", options.timeout, "Seconds without progress after which a stuck job ends");
  command.option("--np", options.ranks, "Fail unless there are N ranks; 0 means any number", {0});
}

void declare_cpu_options(CommandLine& command, CpuFlags& options) {
  std::vector<std::string> isas{"auto"};
  for (const Isa isa : available_isas()) isas.emplace_back(name_of(isa));
  command.section("CPU");
  command.option("--threads", options.threads,
                 "Threads of a rank; 0 divides the cores of a host among its ranks", {0, 4096});
  command.choice("--isa", options.isa, isas, "Instruction set of the fast engine; auto takes the widest");
}

void validate_job(const JobOptions& options) {
  if (!(options.timeout > 0) || !std::isfinite(options.timeout))
    throw InputError("--timeout must be above 0 seconds");
}

void declare_device_options(CommandLine& command, DeviceOptions& options) {
  command.choice("--transport", options.transport, {"auto", "overlapped", "odd-even", "nccl", "staged"},
                 "How K,V move. CPU: overlapped (auto), while ranks compute, or odd-even, between two steps. "
                 "GPU: nccl (auto, if it is built in), or staged, through the hosts' memory with MPI");
  command.renamed("--ring", "--transport");
  command.section("GPU");
  command.choice("--device", options.device, {"cpu", "cuda"}, "What computes");
  command.choice("--type", options.type, {"fp32", "bf16", "fp16"},
                 "Type of q, k, v and dO on the GPU; sums and results are float32");
  command.option("--kernel", options.kernel,
                 "Kernel of the forward, by its name in lesson 11; auto takes the fastest that fits", "WORD");
  command.flag("--share-gpu", options.share_gpu, "More ranks than GPUs, to try things out: correctness only");
}

void declare_same_bits(CommandLine& command, SameBitsFlags& options, const std::string& where) {
  command.flag("--same-bits", options.same_bits,
               "The same bits " + where +
                   ": ranks hold whole tiles, which are added as integers (lesson 16). float32 only");
  command.option("--tile", options.tile, "Tokens of a tile; a different number gives different bits",
                 {1, 1 << 20});
  command.needs("--tile", "--same-bits");
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
                         {"--same-bits", options.same_bits},
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
  validate_job(options);
}

void require_countable(const Shape& q, const std::string& has) {
  if (!fits(q)) throw InputError(has + " more than 2^48 elements: give smaller numbers");
  if (std::max({q.batch, q.heads, q.dim}) > largest_count)
    throw InputError(has + " a B, H or D above 2^31 - 1: give smaller numbers");
}

}  // namespace ring_attention
