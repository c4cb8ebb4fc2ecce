/// \file
/// `Weights`: the parameters and summed gradients that a rank keeps: all of them, or its piece of each array (FSDP).
///
/// FSDP, ZeRO-3 by layer (Rajbhandari et al., arXiv 1910.02054; Zhao et al., arXiv 2304.11277): an array is gathered before
/// it is used and dropped afterwards, and its gradients are summed and scattered. The sums are in the order of the ranks
/// with and without it, so both have the same bits.
#pragma once

#include "model/gradient_sum.hpp"
#include "ring_attention/parallel/collectives/all_to_all.hpp"

namespace ring_attention::model {

/// Whether the ranks that have the same weights keep all of them, or a piece each.
enum class Sharding { none, fsdp };

/// A flat array of parameters while it is used. With FSDP it owns the gathered array, else it looks at the kept one.
template <class T>
struct Whole {
  std::span<const T> values;
  Tensor<T> gathered = {};
};

/// Arrays are those of layouts(): one a layer, then the embedding's.
template <class T>
class Weights {
 public:
  /// \param replicas  the group of the ranks with the same weights
  Weights(std::vector<ParameterLayout> layouts, Group replicas, Sharding sharding);

  [[nodiscard]] std::size_t arrays() const { return layouts_.size(); }
  [[nodiscard]] const ParameterLayout& layout(std::size_t array) const { return layouts_[array]; }
  [[nodiscard]] const std::vector<ParameterLayout>& layouts() const { return layouts_; }
  [[nodiscard]] AllToAll& replicas() const { return *replicas_; }
  [[nodiscard]] Sharding sharding() const { return sharding_; }

  /// The piece of this rank of a flat array: what it keeps with FSDP, and what it sums.
  [[nodiscard]] Interval piece(std::size_t array) const;
  /// The elements that this rank keeps.
  [[nodiscard]] Interval kept(std::size_t array) const;
  /// The kept parameters, and the kept gradients that the last reduce() left.
  [[nodiscard]] std::span<T> values(std::size_t array) { return values_[array].view().elements(); }
  [[nodiscard]] std::span<T> gradients(std::size_t array) { return gradients_[array].view().elements(); }
  /// The gradients of piece().
  [[nodiscard]] std::span<const T> piece_of_gradients(std::size_t array);

  /// All parameters of an array. With FSDP collective over the group, and 1 array of memory while it lives.
  [[nodiscard]] Whole<T> whole(std::size_t array);
  /// Sums over the group; keeps the part that belongs to kept(). Collective.
  /// \param gradient  of this rank's tokens, the whole array
  void reduce(std::size_t array, std::span<const T> gradient);
  /// Reduces sums that may be exact, which go with Sharding::none.
  void reduce(std::size_t array, GradientSums<T>& gradient);

 private:
  std::vector<ParameterLayout> layouts_;
  Group replicas_;
  Sharding sharding_;
  std::vector<Tensor<T>> values_, gradients_;
};

}  // namespace ring_attention::model
