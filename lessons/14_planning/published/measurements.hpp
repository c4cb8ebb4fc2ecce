/// \file
/// Published measurements, and what the model says to them.
///
/// What a source needs is fitted, two numbers at most, and said; everything else is predicted. A row that the model does
/// not reach says so, with the reason.
#pragma once

#include <string>
#include <vector>

#include "ring_attention/core/shape.hpp"

namespace ring_attention::plan {

/// One published number beside ours.
struct Prediction {
  std::string source, what, unit;
  double published = 0, predicted = 0;
  double tolerance = 0;      ///< of |predicted / published - 1|
  std::string why_not = {};  ///< the reason, for a row that does not fit; empty: it must

  [[nodiscard]] double error() const { return predicted / published - 1; }
  [[nodiscard]] bool within() const;  ///< finite, and the error is within the tolerance
  /// Fits where it must, and does not where a reason is given.
  [[nodiscard]] bool as_stated() const { return within() == why_not.empty(); }
};

/// Brandon et al., Striped Attention, arXiv 2311.09431, table 3: the theoretical speed-up of striped over contiguous on
/// N = 4 ranks. Nothing is fitted. x = P / (4 d c) in units of attention's FLOPs, which TF32 makes twice as slow as the
/// projections' P = 4 d^2 + 2 d ff + V d / L a token (the source counts two matrices of the feed-forward part; LLaMA
/// has three): (x + N - 1/2) / (x + N / 2).
[[nodiscard]] double striped_speedup(double hidden, double ffn, double layers, double vocab, double tokens,
                                     int ranks);
[[nodiscard]] std::vector<Prediction> striped_attention();

/// zhuzilin/ring-flash-attention, README at 8996282, batch api, 8 GPUs, 8192 tokens each, 32 query and 8 KV heads of
/// 128, in % of one GPU alone. Fitted for each GPU: what the merges of a forward lose (its zigzag row); a backward
/// loses as much.
[[nodiscard]] std::vector<Prediction> ring_flash_attention();

/// Yang et al., Context parallelism for million-token inference, arXiv 2411.01783, tables 4, 5 and 8: Llama 3 405B on
/// 4 x 8 H100. Fitted: seconds = a + b FLOP, by least relative squares over the prefills of 6400 new tokens and more
/// (0.575 s and 500 TFLOP/s a GPU); alpha and beta of a hop, from its two hops of q.
[[nodiscard]] std::vector<Prediction> million_token_inference();

/// SandAI-org/MagiAttention, cp_benchmark.md at 2c64135, charts read to about 5 TFLOP/s: the ring of
/// TransformerEngine on H100. Fitted: the seconds that a step loses (causal, 32 GPUs), beside Ulysses' rate.
[[nodiscard]] std::vector<Prediction> magi_attention();

/// Li et al., DistFlashAttn, arXiv 2310.03294: speed-up of a causal ring on 8 GPUs. Nothing is fitted.
[[nodiscard]] std::vector<Prediction> dist_flash_attention();

/// Narayanan et al., Megatron-LM, arXiv 2104.04473, table 1: the rows with a pipeline, 8 tensor ranks, 2048 tokens, A100,
/// everything computed again. Nothing is fitted: rates are those of 8xa100; micro-batches of one sequence and stages of one
/// piece are assumed, because the table does not say them.
[[nodiscard]] std::vector<Prediction> megatron_pipelines();

/// Llama 3, arXiv 2407.21783, table 4: 405B on 8192 and 16384 H100, 16 stages, nothing computed again. Nothing is fitted.
/// Chunks of one layer (section 3.3.2: the first of the first stage has the embedding alone). Its K,V are gathered, not
/// sent round a ring.
[[nodiscard]] std::vector<Prediction> llama_3_pipelines();

/// The ratios of lesson 09, by the recurrence and the closed form of the pairs: there finish and critical path are equal.
[[nodiscard]] std::vector<Prediction> load_balance();

/// All of the above.
[[nodiscard]] std::vector<Prediction> every_prediction();

/// From how many new tokens on a prefill should send K,V round the ring, and below send the queries: from there on K,V
/// hide behind computing (Yang et al., equation 2): T >= N C Hkv e / (2 Hq beta).
[[nodiscard]] double smallest_pass_kv(int ranks, double flops, double kv_heads, double heads, double element,
                                      double beta);

}  // namespace ring_attention::plan
