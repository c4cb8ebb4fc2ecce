/// \file
/// `Ring`: the neighbours of a rank, and the owner of the K,V that it holds at each step.
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

  /// Hops of dK,dV, which return to their owner: one a step. None in a ring of one.
  [[nodiscard]] constexpr int gradient_hops() const { return size > 1 ? size : 0; }

  /// The rank whose K,V this rank holds at `step`: (rank - step) mod size. After steps() hops it is the rank itself.
  [[nodiscard]] constexpr int owner(int step) const { return (rank + size - step) % size; }

  /// The inverse: the step at which this rank holds the K,V of `owner`, and so the number of hops behind them.
  [[nodiscard]] constexpr int step_of(int owner) const { return (rank + size - owner) % size; }
};

}  // namespace ring_attention
