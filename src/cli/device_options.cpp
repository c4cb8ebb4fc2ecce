#include "cli/device_options.hpp"

#include <algorithm>
#include <cmath>

#include "ring_attention/core/error.hpp"
#include "ring_attention/cpu/isa.hpp"

namespace ring_attention {

void declare_job_options(CommandLine& command, JobOptions& options) {
  command.section("Job");
  command.option("--timeout", options.timeout, "Seconds without progress after which a stuck job ends");
  command.option("--expect-ranks", options.ranks, "Fail unless there are N ranks; 0 means any number", {0});
  command.renamed("--np", "--expect-ranks");
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

void declare_device_options(CommandLine& command, DeviceOptions& options,
                            const std::vector<std::string>& dtypes) {
  command.choice("--transport", options.transport, {"auto", "overlapped", "odd-even", "nccl", "staged"},
                 "How K,V move. CPU: overlapped (auto), while ranks compute, or odd-even, between two steps. "
                 "GPU: nccl (auto, if it is built in), or staged, through the hosts' memory with MPI");
  command.renamed("--ring", "--transport");
  command.section("GPU");
  command.choice("--device", options.device, {"cpu", "cuda"}, "What computes");
  command.choice(
      "--dtype", options.dtype, dtypes,
      "Type of q, k, v and dO (run on a CPU: that of its files). On a GPU: float32, bf16 or fp16; sums and "
      "results are float32");
  command.renamed("--type", "--dtype");
  command.option("--kernel", options.kernel,
                 "Kernel of the forward, by its name in lesson 11; auto takes the fastest that fits", "WORD");
  command.flag("--share-gpu", options.share_gpu, "More ranks than GPUs, to try things out: correctness only");
}

void declare_same_bits(CommandLine& command, SameBitsFlags& options, bool has_readable,
                       const std::string& where) {
  command.flag("--same-bits", options.same_bits,
               "The same bits " + where +
                   ": ranks hold whole tiles, which are added as integers (lesson 16). float32 only");
  const std::string of_engine = " or of --engine readable (default 64)";
  command.option("--tile", options.tile,
                 "Tokens of a tile of --same-bits (default 256; other tiles give other bits)" +
                     (has_readable ? of_engine : ""),
                 {1, 1 << 20});
  if (!has_readable) command.needs("--tile", "--same-bits");
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
  const Flag of_cpu[] = {
      {"--engine", options.engine != defaults.engine},
      {"--threads", options.threads != defaults.threads},
      {"--isa", options.isa != defaults.isa},
      {"--same-bits", options.same_bits},
      {"--tile", options.tile.has_value()},
      {"--dtype float64", options.dtype == "float64", " (a GPU computes in float32 at most)"},
      {transport_flag.c_str(), transport == "overlapped" || transport == "odd-even"},
      {"--kv-dtype", options.kv_dtype != defaults.kv_dtype, " (K,V travel in --dtype)"}};
  const bool half = options.dtype == "bf16" || options.dtype == "fp16";
  const Flag of_gpu[] = {{"--dtype", half, " (on a CPU it is float32 or float64)"},
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
