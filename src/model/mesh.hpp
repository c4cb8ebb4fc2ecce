/// \file
/// `Mesh`: the four axes along which ranks share a model.
///
/// Fastest first: tensor, ulysses, ring, data. Neighbours exchange most, so they should have the fastest links
/// (Fang, Zhao, USP, arXiv 2405.07719; Llama 3, arXiv 2407.21783, 3.3.2).
#pragma once

#include <string>

#include "ring_attention/parallel/rank_grid.hpp"

namespace ring_attention {

/// How many ranks there are along each axis.
struct MeshShape {
  int tensor =
      1;  ///< share heads and hidden numbers of the feed-forward part: each has a part of the weights
  int ulysses = 1;  ///< share the heads of attention; each has some tokens everywhere else
  int ring = 1;     ///< each has some tokens
  int data = 1;     ///< each has some sequences

  [[nodiscard]] int ranks() const { return tensor * ulysses * ring * data; }
  friend bool operator==(const MeshShape&, const MeshShape&) = default;
};

/// `tensor 2, ulysses 1, ring 4, data 1`.
[[nodiscard]] std::string to_string(const MeshShape& shape);

/// The place of a rank.
class Mesh {
 public:
  /// \throws InputError unless every axis has a rank and their product is `ranks`
  Mesh(int rank, int ranks, const MeshShape& shape);

  [[nodiscard]] const MeshShape& shape() const { return shape_; }
  [[nodiscard]] int rank() const { return rank_; }

  [[nodiscard]] Axis tensor() const { return {1, shape_.tensor}; }
  [[nodiscard]] Axis ulysses() const { return {shape_.tensor, shape_.ulysses}; }
  [[nodiscard]] Axis ring() const { return {shape_.tensor * shape_.ulysses, shape_.ring}; }
  [[nodiscard]] Axis data() const { return {context().stride * context().size, shape_.data}; }
  /// The ranks that share sequences: ulysses and ring.
  [[nodiscard]] Axis context() const { return {shape_.tensor, shape_.ulysses * shape_.ring}; }
  /// The ranks that have the same weights: ulysses, ring and data. They sum the gradients of the weights.
  [[nodiscard]] Axis replicas() const { return {shape_.tensor, context().size * shape_.data}; }

  /// The place among the ranks of context().
  [[nodiscard]] RankGrid grid() const { return {context().index(rank_), context().size, shape_.ulysses}; }
  /// The sequences of a batch that this rank has.
  [[nodiscard]] Interval sequences(Index batch) const;

 private:
  int rank_;
  MeshShape shape_;
};

}  // namespace ring_attention
