/// \file
/// The arguments of the calls of ring_attention.hpp, and what must hold for them.
#pragma once

#include <optional>
#include <string>

#include "ring_attention/ring_attention.hpp"

namespace ring_attention {

/// The arguments of one call, as this rank gave them. A forward has no `result`.
template <class T>
struct Call {
  const char* name;
  View<const T> q, k, v;
  const Placements& placement;
  const Scoring& scoring;
  const Options& options;
  TermArrays<std::optional<View<const SumOf<T>>>> terms;
  std::optional<ResultViews<SumOf<T>>> to = {};            ///< where a forward writes; none: it returns
  std::optional<ResultViews<const SumOf<T>>> result = {};  ///< of the forward, for a backward
  View<const T> grad_out = {};
  std::optional<View<const SumOf<T>>> grad_lse = {};
  std::optional<GradientViews<SumOf<T>>> gradients_to = {};  ///< where a backward writes; none: it returns

  [[nodiscard]] BackwardInputs<T> backward_inputs() const {
    return {q, result->out, result->lse, grad_out, term_rows(), grad_lse};
  }
  /// The shape of out and dO.
  [[nodiscard]] Shape out_shape() const { return q.shape().with_dim(v.shape().dim); }
  /// The rows of this rank's queries; none of a term that there is not.
  [[nodiscard]] Terms<SumOf<T>> term_rows() const {
    return each_term([](const auto& array) { return array.value_or(View<const SumOf<T>>()); }, terms);
  }
  [[nodiscard]] TermShapes term_shapes() const {
    return each_term([](const auto& array) { return array ? std::optional(array->shape()) : std::nullopt; },
                     terms);
  }
  /// \throws InputError when the partition cannot have this number of ranks
  [[nodiscard]] RankGrid grid(int rank, int ranks) const {
    return rank_grid(options.partition, options.ulysses, rank, ranks);
  }
};

/// Throws InputError where an argument is wrong.
class Check {
 public:
  /// A check of the only process: its messages name no rank.
  Check() = default;
  explicit Check(int rank) : whose_("rank " + std::to_string(rank) + ": ") {}

  void operator()(bool holds, const std::string& message) const {
    if (!holds) throw InputError(whose_ + message);
  }
  template <class T>
  void array(const std::string& name, View<T> array, const Shape& due) const {
    (*this)(array.shape() == due,
            name + " is " + to_string(array.shape()) + " where " + to_string(due) + " is due");
    (*this)(array.data() != nullptr || array.size() == 0, name + " is a null pointer");
  }

 private:
  std::string whose_;
};

/// What must be the same on all ranks, one line each: equal texts mean equal arguments.
template <class T>
[[nodiscard]] std::string shared_arguments(const Call<T>& call);

/// Where this rank's arguments first differ from those of rank 0. \throws InputError
void require_same_arguments(int rank, const std::string& mine, const std::string& of_rank_0);

/// What one rank of `ranks` can say of its arguments without the others; not of the options.
/// \throws InputError
template <class T>
void check_arguments(const Check& check, int rank, int ranks, const Call<T>& call);

}  // namespace ring_attention
