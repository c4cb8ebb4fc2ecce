/// \file
/// `Ring`: the neighbours of a rank, and the owner of the K,V that it holds at each step.
/// `Axis`: the groups of ranks that a grid of ranks has in one direction.
///
/// Except for the striped placement, this is the only arithmetic modulo the number of ranks in the project.
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

  /// Hops of dK,dV, which return to their owner: one per step. None in a ring of one.
  [[nodiscard]] constexpr int gradient_hops() const { return size > 1 ? size : 0; }

  /// The rank whose K,V this rank holds at `step`: (rank - step) mod size. After steps() hops it is the rank itself.
  [[nodiscard]] constexpr int owner(int step) const { return (rank + size - step) % size; }

  /// The inverse: the step at which this rank holds the K,V of `owner`, which is also the number of hops they have made.
  [[nodiscard]] constexpr int step_of(int owner) const { return (rank + size - owner) % size; }
};

/// One direction of a grid of ranks: a group holds the ranks that differ only in this coordinate. Neighbours in a group
/// are `stride` ranks apart.
struct Axis {
  int stride = 1;
  int size = 1;

  /// The coordinate of a rank of the world.
  [[nodiscard]] constexpr int index(int world) const { return world / stride % size; }
  /// The lowest rank of its group: the same for all ranks of a group, so it serves as the colour of a sub-communicator.
  [[nodiscard]] constexpr int group(int world) const { return world - index(world) * stride; }
  /// The rank of its group at another coordinate.
  [[nodiscard]] constexpr int at(int world, int index) const { return group(world) + index * stride; }
  /// Its group as a ring.
  [[nodiscard]] constexpr Ring ring(int world) const { return {index(world), size}; }
};

}  // namespace ring_attention
