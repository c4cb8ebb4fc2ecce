// Lesson 14, the idea: the time of a ring of any number of ranks, from two lines a step.
#pragma once

#include <algorithm>
#include <functional>
#include <vector>

#include "ring_attention/ring/topology.hpp"

namespace ring_attention::lesson {

using Seconds = std::function<double(int rank, int step)>;
using Begins = std::vector<std::vector<double>>;  // [step][rank]; the last row is the end

/// When each rank begins each step of a forward. hop(r, t) is the hop into rank r during step t.
inline Begins ring_begins(int ranks, const Seconds& compute, const Seconds& hop) {
  const auto at = [](int r) { return static_cast<std::size_t>(r); };
  Begins begins(1, std::vector<double>(at(ranks), 0.0));
  std::vector<double> arrival(at(ranks));
  for (int t = 0; t < ranks; ++t) {
    const std::vector<double> begin = begins.back();
    std::vector<double> next(begin);
    for (int r = 0; r < ranks; ++r) next[at(r)] += compute(r, t);
    const bool last = t + 1 == ranks;
    // Exercise: unless this is the last step, arrival[at(r)] is when the parcel for rank r is there. The hop begins
    // when both of its ends have begun the step: r and the rank before it, Ring{r, ranks}.prev(), on a ring.
    still_empty("arrival");
    // Exercise: next[at(r)] is when rank r has computed. Unless this is the last step it must also have received, and
    // its own parcel must have arrived at the next rank, Ring{r, ranks}.next(), because its buffer is needed.
    still_empty("next step");
    begins.push_back(next);
  }
  return begins;
}

/// Seconds until the last rank ends.
inline double ring_seconds(int ranks, const Seconds& compute, const Seconds& hop) {
  const Begins begins = ring_begins(ranks, compute, hop);
  return *std::max_element(begins.back().begin(), begins.back().end());
}

/// The same with a barrier at the end of each step: all ranks wait for the slowest.
inline double barrier_seconds(int ranks, const Seconds& compute, const Seconds& hop) {
  double seconds = 0;
  for (int t = 0; t < ranks; ++t) {
    double slowest = 0;
    // Exercise: what does the step take when all wait for the slowest? The last step has no hop.
    still_empty("barrier");
    seconds += slowest;
  }
  return seconds;
}

/// Visible pairs of shards of c tokens under a causal mask, contiguous placement: rank r has the keys of rank r - t at
/// step t, or those of a later rank, which its queries do not see.
inline double causal_pairs(double c, int rank, int step) {
  // Exercise: at step 0 a triangle with its diagonal; then all pairs, or none.
  still_empty("pairs");
}

/// c*: from so many tokens a rank on, a hop hides behind a step. F: FLOP/s, beta: bytes/s, e: bytes of an element, g:
/// query heads to a KV head. A causal mask leaves half of the computing of a step.
inline double smallest_shard(double flops, double beta, double e, double g, bool causal) {
  // Exercise: solve 4 c^2 D / F = 2 c D e / (g beta), a query head's step and hop, for c.
  still_empty("smallest shard");
}

}  // namespace ring_attention::lesson
