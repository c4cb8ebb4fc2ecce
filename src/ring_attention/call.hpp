/// \file
/// `Call`: the arguments of one call of ring_attention.hpp, what must hold for them, and what all ranks must have the same.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <unordered_set>

#include "ring_attention/attention/views.hpp"
#include "ring_attention/attention_ranks.hpp"
#include "ring_attention/parallel/context_parallel.hpp"

namespace ring_attention {

/// The arrays that attention reads. Without a bias, `bias` is std::nullopt on all ranks.
template <class T>
struct AttentionArrays {
  View<const T> q, k, v;
  std::optional<View<const SumOf<T>>> bias = {};
};

/// The arguments of one call, as this rank gave them. A forward has no `result`.
template <class T>
struct Call {
  using Value = SumOf<T>;

  const char* name;
  const AttentionArrays<T>& arrays;
  const Placements& placement;
  const Scoring& scoring;
  Division division;
  std::string computes;  ///< Device::name(), or what else all ranks have the same, one line each
  std::optional<ResultViews<Value>> to = {};            ///< where a forward writes; none: it returns
  std::optional<ResultViews<const Value>> result = {};  ///< of the forward, for a backward
  View<const T> grad_out = {};
  std::optional<View<const Value>> grad_lse = {};
  std::optional<GradientViews<Value>> gradients_to = {};  ///< where a backward writes; none: it returns

  [[nodiscard]] BackwardInputs<T> backward_inputs() const {
    return {arrays.q, result->out, result->lse, grad_out, bias(), grad_lse};
  }
  /// The shape of out and dO.
  [[nodiscard]] Shape out_shape() const { return arrays.q.shape().with_dim(arrays.v.shape().dim); }
  /// The rows of this rank's queries; empty without a bias.
  [[nodiscard]] View<const Value> bias() const { return arrays.bias.value_or(View<const Value>()); }
  /// \throws InputError when the partition cannot have this number of ranks
  [[nodiscard]] SharedAttention shared(int rank, int ranks) const;
  /// Calls use(name, array, the shape that is due) for every array of the caller's.
  void each_array(const SharedAttention& shared, const auto& use) const {
    const auto rows_of = [&](const Placement& tokens) { return count(shared.grid.slice(tokens)); };
    const Shape q = shared.q.with_seq(rows_of(shared.tokens.queries)), out = q.with_dim(shared.kv.value_dim),
                k{q.batch, shared.kv.heads, rows_of(shared.tokens.keys), q.dim}, v = k.with_dim(out.dim);
    Shape of_bias;
    if (shared.bias)
      of_bias = {shared.bias->batch == 1 ? 1 : q.batch, shared.bias->heads == 1 ? 1 : q.heads, q.seq,
                 shared.tokens.keys.seq()};
    use("q", arrays.q, q);
    use("k", arrays.k, k);
    use("v", arrays.v, v);
    if (arrays.bias) use("bias", *arrays.bias, of_bias);
    if (to) use("out", to->out, out);
    if (to) use("lse", to->lse, q.per_row());
    if (!result) return;
    use("result.out", result->out, out);
    use("result.lse", result->lse, q.per_row());
    use("grad_out", grad_out, out);
    if (grad_lse) use("grad_lse", *grad_lse, q.per_row());
    if (!gradients_to) return;
    use("dq", gradients_to->q, q);
    use("dk", gradients_to->k, k);
    use("dv", gradients_to->v, v);
    if (shared.bias || gradients_to->bias.size() > 0) use("dbias", gradients_to->bias, of_bias);
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

/// What one rank can say of its arguments without the others. \throws InputError
template <class T>
void check_arguments(const Check& check, const Call<T>& call, const SharedAttention& shared);

/// A call that all ranks make, with arguments that are right and belong together.
struct AgreedCall {
  SharedAttention shared;
  std::string text;  ///< what all ranks have the same, one line each: equal texts mean equal arguments
  bool first;        ///< its text is not in `completed` on some rank
};

/// Returns when all ranks make this call. One unite() of all ranks; more only to explain an error.
/// \param check_more  what the processor needs; it sends nothing  \throws AgreedError on all ranks when it or an argument is
/// wrong
template <class T>
[[nodiscard]] AgreedCall agreed(AttentionRanks& ranks, const Call<T>& call,
                                const std::function<void(const Check&, const SharedAttention&)>& check_more,
                                const std::unordered_set<std::string>& completed = {});

}  // namespace ring_attention
