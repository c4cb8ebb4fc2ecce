#include "plan/machine.hpp"

#include <algorithm>
#include <cmath>

#include "plan/names.hpp"
#include "ring_attention/core/shape.hpp"
#include "ring_attention/core/text.hpp"

namespace ring_attention::plan {
namespace {

constexpr double tera = 1e12, giga = 1e9;

/// Shares of the nominal rates that published measurements reach.
constexpr double linear_share =
    0.7;  // of the peak: an 8192^3 product reaches 0.79 on an H200; smaller ones less
constexpr double link_share = 0.82;  // of NVLink: ParallelKittens, arXiv 2511.13940, from 256 MB on
constexpr double nic_share = 0.52;   // of 50 GB/s: Yang et al., arXiv 2411.01783, table 5: 26 GB/s, 40 us

Machine nvidia(const std::string& name, const std::string& source, double peak, double attention,
               double memory, double memory_rate, double link, double nic) {
  return {name,
          source,
          linear_share * peak,
          attention,
          memory,
          memory_rate,
          8,
          8,
          {10e-6, link_share * link},
          {40e-6, nic_share * nic},
          peak};
}

}  // namespace

LinkClass Machine::shared_nic(double flows) const {
  return {nic.alpha, nic.beta * std::min(1.0, static_cast<double>(nics) / flows)};
}

const std::vector<Machine>& named_machines() {
  static const std::vector<Machine> machines{
      nvidia("8xh100",
             "data sheet: 989 TFLOP/s bf16, 80 GB at 3.35 TB/s, NVLink 450 GB/s, NIC 400 Gb/s; attention "
             "as FlashAttention-3, causal",
             989 * tera, 616 * tera, 80 * giga, 3.35 * tera, 450 * giga, 50 * giga),
      nvidia("8xh200",
             "data sheet: 989 TFLOP/s bf16, 141 GB at 4.8 TB/s, NVLink 450 GB/s, NIC 400 Gb/s; attention "
             "as cuDNN 9.19, causal",
             989 * tera, 644 * tera, 141 * giga, 4.8 * tera, 450 * giga, 50 * giga),
      nvidia("8xa100",
             "data sheet: 312 TFLOP/s bf16, 80 GB at 2.0 TB/s, NVLink 300 GB/s, NIC 200 Gb/s; attention "
             "as ring-flash-attention's one GPU, causal",
             312 * tera, 205 * tera, 80 * giga, 2.0 * tera, 300 * giga, 25 * giga),
      {"tpu-v4",
       "Liu et al., table 2: 275 TFLOP/s, 32 GB, 268 GB/s; memory 1.2 TB/s; attention assumed at half of the "
       "peak",
       linear_share * 275 * tera,
       0.5 * 275 * tera,
       32 * giga,
       1.2 * tera,
       4096,
       4096,
       {10e-6, link_share * 268 * giga},
       {10e-6, link_share * 268 * giga},
       275 * tera},
  };
  return machines;
}

Machine cpu_host() {
  constexpr Index one_node = 1 << 20;
  Machine host{"cpu", "docs/results.md", 118 * giga, 118 * giga, 4 * giga, 1e3 * tera, one_node, 1, {}, {}};
  host.link = host.nic = {2e-6, 4 * giga};
  host.peak_flops = host.linear_flops;
  host.hides = false;
  return host;
}

Machine machine_named(const std::string& name) { return named(named_machines(), name, "machine"); }

void validate(const Machine& machine) {
  const auto positive = [](double value, const char* what) {
    if (!(value > 0) || !std::isfinite(value))
      throw InputError(format("%s must be a positive number, not %g", what, value));
  };
  positive(machine.linear_flops, "the arithmetic of a device");
  positive(machine.attention_flops, "the arithmetic of a device");
  positive(machine.peak_flops, "the arithmetic of a device");
  positive(machine.memory, "the memory of a device");
  positive(machine.memory_rate, "the memory rate of a device");
  positive(machine.link.beta, "the bandwidth of a link");
  positive(machine.nic.beta, "the bandwidth of a NIC");
  if (!within(machine.node, 1, largest_count) || !within(machine.nics, 1, largest_count))
    throw InputError("a node has 1 to 2^31 - 1 devices and NICs");
}

}  // namespace ring_attention::plan
