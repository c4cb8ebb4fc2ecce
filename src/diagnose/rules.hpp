/// \file
/// `Rules`: every decision that a ring makes, each as a value or a short function. A mistake is an edit of them.
///
/// The simulation of ring.hpp asks these rules and nothing else; those that a `Rules` starts with are right.
#pragma once

#include <functional>
#include <limits>
#include <optional>
#include <vector>

#include "diagnose/problem.hpp"
#include "diagnose/rounding.hpp"
#include "ring_attention/core/eigen.hpp"
#include "ring_attention/ring/topology.hpp"

namespace ring_attention::diagnose {

inline constexpr double minus_infinity = -std::numeric_limits<double>::infinity();

/// A rank of the ring, which way parcels travel (+1: to the next rank), and the placement of the tokens.
struct Turn {
  Ring ring;
  int direction = 1;

  /// The rank whose K,V are here after so many hops, also after more than a turn.
  [[nodiscard]] int owner(int hops) const {
    while (hops >= ring.size) hops -= ring.size;
    return ring.owner(direction * hops);
  }
};

/// What a rank does at one step of the ring. In a right ring all of these are the owner.
struct Step {
  static constexpr int no_rank = -1;

  int k, v;          ///< whose keys, whose values it computes with
  int positions;     ///< whose positions it takes the keys to have
  int dk_to, dv_to;  ///< to whom the parts of dK, dV go
};
using Steps = std::vector<Step>;

/// A token in a shard.
struct Place {
  int rank = 0;
  Index slot = 0;      ///< in the shard
  Index position = 0;  ///< in the sequence; of a slot that holds no token: behind the last one
};

/// A query, a key as the mask takes it to be, and the key that really is there.
struct Pair {
  Place query, key, content;
  Place in_place_of_key;  ///< what the query's rank has in the slot of the key

  [[nodiscard]] bool on_one_rank() const { return query.rank == key.rank; }
};

/// Where tokens are, under any placement of as many slots.
class Slots {
 public:
  explicit Slots(const Problem& problem);

  [[nodiscard]] int ranks() const { return job_.ring(); }
  [[nodiscard]] Index count() const { return count_; }  ///< of a shard
  [[nodiscard]] const Place& at(int rank, Index slot) const {
    return places_[static_cast<std::size_t>(rank * count_ + slot)];
  }
  /// Where the token would be under another placement.
  [[nodiscard]] Index position(PlacementKind kind, const Place& place) const;
  /// Where the mask takes it to be when tokens are placed over all ranks of a hybrid, not over those of its ring.
  [[nodiscard]] Index position_if_placed_over_world(const Place& place) const;
  /// And if the axes of Ulysses and of the ring were exchanged.
  [[nodiscard]] Index position_with_swapped_axes(const Place& place) const;
  [[nodiscard]] const Job& job() const { return job_; }
  [[nodiscard]] Index tokens() const { return tokens_; }

 private:
  [[nodiscard]] Index nth(const TokenRanges& tokens, Index n) const;

  Job job_;
  Index tokens_, count_;
  std::vector<Place> places_;
  std::vector<Index> taken_;  // for position_if_placed_over_world: of each position; empty: all as they are
};

/// The softmax of one row over the keys of some steps.
struct RowState {
  double m = minus_infinity, l = 0;

  [[nodiscard]] double lse() const { return l > 0 ? m + std::log(l) : minus_infinity; }
};

/// The same as a merge of normalised pieces knows it.
struct PieceState {
  double lse = minus_infinity, m = minus_infinity;
  int steps = 0;  ///< that had keys
};

/// How the online merge moves o and l to the common maximum: those before, and those of the new step.
struct Factors {
  double o, l, new_o, new_l;
};

/// How a merge of normalised pieces weighs the out before and the new one, and the lse (and m) after it.
struct Weights {
  double out, new_out, lse;
  double m = 0;
};

/// The right ones.
[[nodiscard]] Weights weights_by_lse(const PieceState& before, const PieceState& piece);

/// Which out or lse the backward takes for a row.
enum class Source { whole, own_shard, step, none };

using RowVector = Eigen::RowVectorXd;

/// The rules of one pass.
struct Rules {
  int direction = 1;

  // The schedule: edits of the steps of a rank, one after the other.
  std::vector<std::function<void(const Turn&, Steps&)>> schedule;

  // What a query sees: edits of the positions that the mask, or the bias, takes tokens to have; then four rules.
  using Positions = std::vector<std::function<void(const Slots&, Pair&)>>;
  Positions mask_positions, bias_positions;
  using Sees = std::function<bool(const Case&, const Pair&)>;
  Sees causal, window, documents, padding;
  bool skips_partial_tiles = false;  ///< steps of which a rank sees a part

  // Scores: scale q k^T + bias.
  std::function<double(const Case&)> scale;
  std::function<double(const Case&, double)> bias;  ///< of that of a pair
  double hidden_score = minus_infinity;
  using Head = std::function<Index(const Problem&, Index)>;
  Head kv_head, bias_head, slope_head, sink_head;

  // The softmax of a step: its maximum, of that of its scores; and a guard of e^{-inf - (-inf)}.
  std::function<double(double)> maximum;
  bool guarded = true;
  bool skips_hidden_tiles = false;  ///< steps of which a rank sees nothing

  // The merge of a step: of states, or of normalised pieces where there is such a rule.
  std::function<Factors(double m, double m_new, double m_merged)> factors;
  std::function<Weights(const PieceState& before, const PieceState& piece)> weights;
  double lse_unit = 1;                     ///< in which the lse of a step is handed to the merge of pieces
  double lse_of_nothing = minus_infinity;  ///< what a step without keys hands to the merge of pieces
  std::optional<Precision> out_kept_in, lse_kept_in;  ///< between steps

  // The end of the forward.
  std::function<double(int steps_with_keys, int ranks)> sink_times;
  bool normalised = true;
  std::function<double(const std::vector<RowState>& steps, double lse)> returned_lse;
  std::vector<std::function<void(const Problem&, Arrays&)>> after_forward;

  // The backward.
  std::function<double(const Slots&, const Problem&, const Place&, Index head, Index column)> dout;
  Source lse_from = Source::whole, delta_from = Source::whole;
  std::function<double(const Case&)> dq_factor, dk_factor;  ///< beside the scale
  using Add = std::function<void(Matrix<double>& sum, const Matrix<double>& part, int step)>;
  Add add_dq, add_dkdv;
  bool part_zeroed = true;                               ///< the step's part of dK,dV, before it is filled
  std::optional<Precision> dq_kept_in, dkdv_kept_in;     ///< between steps
  Head dkdv_head;                                        ///< the KV head that sums those of a query head
  std::function<double(const Problem&, Index)> dkdv_of;  ///< times which it counts
  std::vector<std::function<void(const Problem&, const Turn&, Arrays&)>> after_backward;

  /// Those of a right ring.
  Rules();
};

}  // namespace ring_attention::diagnose
