/// \file
/// The cases of `ring_attention_diagnose` for rings that run in C++. `DiagnoseCase`: a small problem that shows some mistakes;
/// `ladder`: all of them, the simplest first; `Trial`: its arrays and its right results.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "diagnose/arrays.hpp"
#include "ring_attention/attention/scoring.hpp"
#include "ring_attention/parallel/rank_grid.hpp"

namespace ring_attention::diagnose {

/// The ranks of the code that is to be tested.
struct JobShape {
  int ranks = 3;
  PlacementKind placement = PlacementKind::contiguous;
  int ulysses = 1;  ///< ranks that share the heads: 1 in a ring, all in Ulysses, some in a hybrid

  [[nodiscard]] int ring() const { return ranks / ulysses; }
  /// The tokens of a rank of the job.
  [[nodiscard]] TokenRanges tokens_of(int rank, Index tokens) const {
    return RankGrid(rank, ranks, ulysses).slice(Placement(placement, tokens, ring()));
  }
};

/// One problem, in words that a user's code can follow.
struct DiagnoseCase {
  std::string name;
  std::string tests;         ///< what it adds to those before it, in a few words
  std::uint64_t number = 0;  ///< in the ladder: no two cases have the same arrays
  Index tokens = 0, heads = 4, kv_heads = 4, dim = 16;
  bool causal = false;
  Index window = 0;                   ///< keys that a query sees, its own included; 0: all
  std::vector<Index> documents = {};  ///< cu_seqlens of packed documents; empty: one document
  bool alibi = false, bias = false, sinks = false;
  Index padding = 0;          ///< the first keys, which no query sees
  bool large_scores = false;  ///< in three of four heads: near +-100, near -10150, near -120

  [[nodiscard]] Shape q() const { return {1, heads, tokens, dim}; }
  [[nodiscard]] Shape kv() const { return {1, kv_heads, tokens, dim}; }
  [[nodiscard]] Index group() const { return heads / kv_heads; }
  [[nodiscard]] double scale() const;
  [[nodiscard]] Shape shape_of(Array array) const;
};

/// The cases for a job, the simplest first. Each adds one thing to `full` or to `causal`.
[[nodiscard]] std::vector<DiagnoseCase> ladder(const JobShape& job);

/// A case with its arrays. Their elements are exact in bf16 and in fp16: a code of any type gets the same problem.
struct Trial {
  Trial(const DiagnoseCase& which, const JobShape& ranks, std::uint64_t seed_of_arrays);
  /// How scores are formed, but for the bias and the padding.
  [[nodiscard]] Scoring scoring() const;

  DiagnoseCase the_case;
  JobShape job;
  std::uint64_t seed = 0;
  Tensor<double> q, k, v, dout;
  Tensor<double> bias;                ///< [1, heads, tokens, tokens], or empty
  std::vector<double> slopes, sinks;  ///< one a head, or none
  Arrays right;                       ///< dense attention in double

 private:
  void find_right_results();
};

}  // namespace ring_attention::diagnose
