// Lesson 15, beside the idea: T new tokens after P cached ones. Which travels, K,V or the queries?
// The rule and the measurements: Yang et al., Context Parallelism for Scalable Million-Token Inference, arXiv
// 2411.01783, equations 1 and 2, table 4 (Llama 3 405B, T + P = 128000, four nodes of 8 H100). The rates follow from
// its table 5.
#pragma once

#include "common/lesson.hpp"

namespace ring_attention::lesson_15 {

struct Nodes {
  Index ranks, heads, kv_heads;
  double flops_per_second, bytes_per_second;  // attention that a GPU sustains, and its link between nodes
};
inline constexpr Nodes four_nodes{4, 128, 8, 506e12, 26e9};

/// K,V are less than the queries: 2 Hkv (T + P) < Hq T.
inline bool kv_is_less(const Nodes& nodes, Index new_tokens, Index all_tokens) {
  return new_tokens * nodes.heads > 2 * nodes.kv_heads * all_tokens;
}
/// Or K,V in 2 bytes hide behind the attention of T queries: 4 T c Hq D / F >= 2 c Hkv D e / beta.
inline bool kv_is_hidden(const Nodes& nodes, Index new_tokens) {
  const double needed = static_cast<double>(nodes.kv_heads) * 2 * nodes.flops_per_second /
                        (2 * static_cast<double>(nodes.heads) * nodes.bytes_per_second);
  return static_cast<double>(new_tokens) >= static_cast<double>(nodes.ranks) * needed;
}

struct Measured {
  Index new_tokens;
  double pass_kv, pass_q;  // ms to the first token
};
inline constexpr std::array table_4{
    Measured{1280, 1023.39, 898.71},     Measured{3200, 1110.18, 1046.43},
    Measured{4160, 1298.92, 1280.1},     Measured{6400, 1305.56, 1302.01},
    Measured{12800, 2080.67, 2205.27},   Measured{25600, 3353.02, 3617.02},
    Measured{38400, 4629.23, 4922.52},   Measured{51200, 5745.08, 6217.83},
    Measured{64000, 6845.21, 7367.99},   Measured{76800, 7890.35, 8468.66},
    Measured{89600, 8697.27, 9666.62},   Measured{102400, 10105.78, 10652.39},
    Measured{115200, 11136.4, 11571.62}, Measured{128000, 11462.15, 12360.57}};

inline void show_rule(Lesson& lesson) {
  Table table(
      {"new tokens of 128000", "K,V less", "K,V hidden", "rule", "measured", "pass-KV ms", "pass-Q ms"});
  double worst = 0;
  int right = 0;
  for (const Measured& row : table_4) {
    const bool less = kv_is_less(four_nodes, row.new_tokens, 128000),
               hidden = kv_is_hidden(four_nodes, row.new_tokens);
    const bool kv = less || hidden, faster = row.pass_kv < row.pass_q;
    const double taken = kv ? row.pass_kv : row.pass_q, best = std::min(row.pass_kv, row.pass_q);
    worst = std::max(worst, taken / best - 1);
    right += kv == faster ? 1 : 0;
    table.row({std::to_string(row.new_tokens), less ? "yes" : "no", hidden ? "yes" : "no", kv ? "K,V" : "Q",
               faster ? "K,V" : "Q", format("%.0f", row.pass_kv), format("%.0f", row.pass_q)});
  }
  lesson.print("pass_q", table);
  lesson.check("the rule takes the faster one, or loses less than 0.5 %", worst < 0.005,
               format("%d of 14; at most %.2f %% lost", right, worst * 100));
}

}  // namespace ring_attention::lesson_15
