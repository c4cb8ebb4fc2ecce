/// \file
/// `BenchReport`: measured and modelled times of `ring-attention bench`, as text or JSON.
#pragma once

#include <string>
#include <vector>

#include "plan/ring_time.hpp"
#include "program/backend.hpp"
#include "program/bench/options.hpp"

namespace ring_attention {

/// Seconds of one placement: medians, of the slowest rank. Where ranks share heads, the ring is that of one head's ranks.
struct PlacementTimes {
  std::string placement;
  std::string pass = "forward";  ///< or backward, with one more hop of dK,dV
  double compute = 0;            ///< all steps, nothing sent
  double messages = 0;           ///< all hops, nothing computed; 0 with one rank
  double in_turn = 0;            ///< hops after steps
  double overlapped = 0;         ///< hops during steps
  double exposed = 0;            ///< of `overlapped`: waited for messages
  Rates rates = {};              ///< F from `compute`, beta from `messages`
  RingTime model = {};           ///< from those
  // of other partitions than one ring; `exposed` is of `whole` then
  double all_to_all =
      0;             ///< of q, k, v and out (backward: dO, dQ, dK, dV), or the all-gather; nothing computed
  double whole = 0;  ///< with the ring in between, and lse, as `run` does it
  Index all_to_all_bytes = 0;  ///< that this rank sends
};

struct BenchReport {
  int ranks = 1;
  int ulysses = 1;      ///< ranks that share heads
  Index hop_bytes = 0;  ///< the largest parcel
  Index element_bytes = 0;
  BackendDescription backend;
  std::vector<PlacementTimes> placements;

  [[nodiscard]] int rings() const { return ranks / ulysses; }  ///< ranks of a ring
  /// c* = e F / (2 g beta): with this many tokens a rank or more, a hop is hidden (twice as many under a causal mask in
  /// zigzag placement). Liu et al., section 3.2.
  [[nodiscard]] double smallest_shard(const BenchOptions& options) const;
};

[[nodiscard]] std::string to_text(const BenchReport& report, const BenchOptions& options);
[[nodiscard]] std::string to_json(const BenchReport& report, const BenchOptions& options);

}  // namespace ring_attention
