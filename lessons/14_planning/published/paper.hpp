/// \file
/// The tables of Liu, Zaharia, Abbeel, Ring Attention, arXiv 2310.01889v4: what is printed, and the formula behind it.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "plan/model_shape.hpp"

namespace ring_attention::plan {

/// Table 1, activations of one layer: batch b, tokens s, hidden size h, n heads, blocks of c tokens.
struct Activations {
  std::string method;
  double printed = 0;  ///< the column "Total", by its formula
  double bytes = 0;    ///< what that formula should give in bf16
};
/// Slips of the printed table: the total of a vanilla transformer is 2 b n s^2, printed 2 b h s^2; and the ring's 6bch
/// counts elements, so 12bch bytes (the other entries are bytes).
[[nodiscard]] std::vector<Activations> table_1(double b, double s, double h, double n, double c);

/// Table 2: the smallest block that hides a hop, c = F / beta, and what the paper calls the minimal sequence of a
/// device, s = 6 c; thousands of tokens.
struct SmallestBlock {
  const char* device;
  double teraflops, gigabytes_per_second;
  double printed_block, printed_sequence;

  [[nodiscard]] double block() const { return teraflops / gigabytes_per_second; }
  [[nodiscard]] double sequence() const { return 6 * block(); }
};
/// Slips: InfiniBand is printed as 24.5 and 149.5; 312 / 12.5 is 24.96, six times that 149.76. And six is the number of
/// arrays of c tokens that a device holds (q, out, K,V and the next K,V); it has c tokens, which hide a hop.
inline constexpr std::array<SmallestBlock, 5> table_2{{{"A100 NVLink", 312, 300, 1.0, 6.2},
                                                       {"A100 InfiniBand", 312, 12.5, 24.5, 149.5},
                                                       {"TPU v3", 123, 112, 1.1, 6.6},
                                                       {"TPU v4", 275, 268, 1.0, 6.2},
                                                       {"TPU v5e", 196, 186, 1.1, 6.3}}};

/// Table 3: the longest context in training, thousands (1024) of tokens.
struct LongestContext {
  const char* devices;
  int count;          ///< devices: TPUv3-512 has 512 cores, two a device
  double gigabytes;   ///< of a device
  const char* model;  ///< of named_models()
  double blockwise;   ///< with memory-efficient attention and feed-forward part, the best before
  double ring;        ///< Ring Attention
  double multiple;    ///< printed: ring over blockwise
};
/// The text beside it says "over 30 million tokens" for TPUv4-512. The largest entry is 16384 thousand.
inline constexpr std::array<LongestContext, 13> table_3{{{"8x A100", 8, 80, "llama-3b", 64, 512, 8},
                                                         {"8x A100", 8, 80, "llama-7b", 32, 256, 8},
                                                         {"8x A100", 8, 80, "llama-13b", 16, 128, 8},
                                                         {"32x A100", 32, 80, "llama-7b", 128, 4096, 32},
                                                         {"32x A100", 32, 80, "llama-13b", 64, 2048, 32},
                                                         {"TPUv3-512", 256, 32, "llama-7b", 8, 2048, 256},
                                                         {"TPUv3-512", 256, 32, "llama-13b", 8, 1024, 128},
                                                         {"TPUv4-1024", 512, 32, "llama-3b", 32, 16384, 512},
                                                         {"TPUv4-1024", 512, 32, "llama-7b", 16, 8192, 512},
                                                         {"TPUv4-1024", 512, 32, "llama-13b", 16, 4096, 256},
                                                         {"TPUv4-1024", 512, 32, "llama-30b", 8, 2048, 256},
                                                         {"TPUv5e-256", 256, 16, "llama-3b", 32, 4096, 128},
                                                         {"TPUv5e-256", 256, 16, "llama-7b", 16, 2048, 128}}};

/// Thousands of tokens, a power of two, that the blockwise transformer holds: 16 bytes a parameter over all devices,
/// two gathered layers in float, and for each token 4 h L bytes of checkpoints, 24 h of work and 8 V of logits, in 0.92
/// of the memory. No number of the table is used.
/// \param gigabyte  bytes: 10^9
[[nodiscard]] double blockwise_context(const LongestContext& row, double gigabyte = 1e9);

/// The same for the ring: what memory() of a plan leaves for one sequence on a ring of all devices. All arrays are float32,
/// which the authors say of GPUs (section 5; of TPUs they say that products are in bf16). No number of the table is used.
[[nodiscard]] double ring_context(const LongestContext& row);

/// Figure 5: FLOPs of a training step over a data set, with contexts of 4096 `multiple` tokens instead of 4096:
/// (6 h + s2) / (6 h + s1).
[[nodiscard]] double flops_ratio(double hidden, double multiple);

struct FlopsRatios {
  const char* model;
  double hidden;
  std::array<double, 9> printed;
};
inline constexpr std::array<double, 9> figure_5_multiples{2, 4, 8, 16, 32, 64, 256, 3072, 32768};
/// Slips: appendix D prints hidden size 5140 for 13B; the figure has 5120. It has 7168 for 33B; LLaMA's is 6656.
inline constexpr std::array<FlopsRatios, 6> figure_5{
    {{"7B", 4096, {1.1, 1.4, 2.0, 3.1, 5.4, 10.0, 37.4, 439.7, 4682.0}},
     {"13B", 5120, {1.1, 1.4, 1.8, 2.8, 4.6, 8.4, 31.0, 362.3, 3855.9}},
     {"33B", 7168, {1.1, 1.3, 1.6, 2.3, 3.7, 6.5, 23.2, 268.0, 2850.3}},
     {"65B", 8192, {1.1, 1.2, 1.5, 2.2, 3.4, 5.8, 20.6, 237.2, 2521.5}},
     {"175B", 12288, {1.1, 1.2, 1.4, 1.8, 2.6, 4.3, 14.4, 162.6, 1725.6}},
     {"1TB", 36864, {1.0, 1.1, 1.1, 1.3, 1.6, 2.1, 5.6, 56.8, 596.8}}}};

/// Section 5.2, the form behind table 4 (whose values are bars of a picture): the share of the peak that a mix of work
/// reaches. \param shares  of the FLOPs, they sum to 1 \param rates  share of the peak of each
[[nodiscard]] double mixed_share(const std::vector<double>& shares, const std::vector<double>& rates);

}  // namespace ring_attention::plan
