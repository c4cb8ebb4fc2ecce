/// \file
/// `Ring`: who is next, who is before, and whose K,V a rank holds at each step.
///
/// The only arithmetic modulo the number of ranks in the project.
#pragma once

namespace ring_attention {

/// Rank `rank` of a ring of `size` ranks. Parcels move from rank r to r + 1.
struct Ring {
  int rank = 0;
  int size = 1;

  [[nodiscard]] constexpr int next() const { return (rank + 1) % size; }
  [[nodiscard]] constexpr int prev() const { return (rank + size - 1) % size; }

  /// Steps of a full turn: each rank computes with every shard once.
  [[nodiscard]] constexpr int steps() const { return size; }

  /// The rank whose K,V this rank holds at `step`: (rank - step) mod size. At step = steps() it is the rank
  /// itself again: a parcel that makes one hop more comes home.
  [[nodiscard]] constexpr int owner(int step) const { return (rank + size - step) % size; }
};

}  // namespace ring_attention
