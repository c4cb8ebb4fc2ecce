/// \file
/// The search: which mesh of a number of ranks fits, and is fastest.
#pragma once

#include <optional>

#include "plan/memory.hpp"
#include "plan/step_time.hpp"

namespace ring_attention::plan {

/// Sizes of a mesh that are given; the others are searched.
struct MeshWish {
  std::optional<int> tensor = {}, ulysses = {}, ring = {}, data = {};
  int pipeline = 1;  ///< stages; not searched
};

/// One mesh and what it takes.
struct Candidate {
  Mesh mesh;
  std::vector<Part> memory;
  StepTime time;
  bool fits = false;

  [[nodiscard]] double seconds() const { return time.total(); }
};

/// Every mesh of `ranks` ranks that is possible: tensor divides the heads and the feed-forward part; tensor and ulysses
/// divide the heads by the rule of can_share_heads; data divides the batch, and micro-batches what is left of it; a rank has a token at least; a cache that is
/// decoded is cut by ring alone. Those that fit come first, the fastest of them first; then the others, the smallest
/// first.
/// \throws InputError, which says what would do, when there is none
[[nodiscard]] std::vector<Candidate> candidates(const Workload& work, const Machine& machine, int ranks,
                                                const MeshWish& wish = {});

/// The meshes that differ from the first by one factor of two from one axis to another: the first and the fastest two
/// of the others that fit (fewer when there are fewer).
[[nodiscard]] std::vector<Candidate> with_neighbours(const std::vector<Candidate>& all);

/// The longest context that fits on these ranks, with whichever mesh.
struct Longest {
  double tokens = 0;
  Mesh mesh;
};
[[nodiscard]] Longest longest_context(const Workload& work, const Machine& machine, int ranks,
                                      const MeshWish& wish = {});

/// The smallest number of ranks, `ranks` times a power of two, on which the work fits; nothing when 2^20 do not
/// suffice.
[[nodiscard]] std::optional<int> enough_ranks(const Workload& work, const Machine& machine, int ranks,
                                              const MeshWish& wish = {});

}  // namespace ring_attention::plan
