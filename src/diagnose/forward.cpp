#include <algorithm>
#include <cmath>

#include "diagnose/ring.hpp"
#include "diagnose/scores.hpp"
#include "ring_attention/attention/softmax.hpp"

namespace ring_attention::diagnose {
namespace {

/// What one row of one head has at one step: its state, and o, not normalised.
struct RowStep {
  RowState state;
  RowVector o;
  bool skipped = false;

  [[nodiscard]] RowVector out(bool guarded) const {
    return state.l > 0 || !guarded ? RowVector(o / state.l) : RowVector(RowVector::Zero(o.size()));
  }
};
using RowSteps = std::vector<RowStep>;

class ForwardRing {
 public:
  ForwardRing(const Problem& problem, const Rules& rules, Precision precision)
      : problem_(problem),
        rules_(rules),
        precision_(precision),
        sums_(sums_of(precision)),
        slots_(problem),
        scorer_(problem, rules, slots_, precision) {}

  [[nodiscard]] Forward run() const {
    const Case& c = problem_.the_case;
    Forward result;
    Shards out(slots_, c.heads, c.dim), lse(slots_, c.heads, 1);
    for (int rank = 0; rank < slots_.ranks(); ++rank) {
      const std::vector<std::vector<RowSteps>> rows = softmaxes(rank);
      result.pieces.push_back(pieces(rows));
      for (Index head = 0; head < c.heads; ++head)
        for (Index slot = 0; slot < slots_.count(); ++slot) {
          const RowSteps& steps = rows[static_cast<std::size_t>(head)][static_cast<std::size_t>(slot)];
          RowStep merged = rules_.weights ? merged_pieces(steps) : merged_states(steps);
          add_sink(merged, head, steps);
          out.at(rank, head).row(slot) = finished(merged).unaryExpr([&](double x) { return low(x); });
          lse.at(rank, head)(slot, 0) = returned_lse(merged, steps);
        }
    }
    result.arrays[Array::out] = out.joined(slots_, c.tokens);
    result.arrays[Array::lse] = lse.joined(slots_, c.tokens);
    for (const auto& edit : rules_.after_forward) edit(problem_, result.arrays);
    return result;
  }

 private:
  [[nodiscard]] double low(double x) const { return rounded(x, precision_); }
  [[nodiscard]] double sum(double x) const { return rounded(x, sums_); }

  /// e^{score - m} of each row of each step, by head and slot.
  [[nodiscard]] std::vector<std::vector<RowSteps>> softmaxes(int rank) const {
    const auto heads = static_cast<std::size_t>(problem_.the_case.heads);
    std::vector<std::vector<RowSteps>> rows(heads,
                                            std::vector<RowSteps>(static_cast<std::size_t>(slots_.count())));
    for (const Step& step : scorer_.steps(rank)) {
      const std::vector<Matrix<double>> scores = scorer_.scores(rank, step);
      for (std::size_t head = 0; head < heads; ++head) {
        Matrix<double> p = scores[head];
        const bool skipped = rules_.skips_hidden_tiles && p.maxCoeff() == minus_infinity;
        for (Index slot = 0; slot < p.rows(); ++slot) {
          const RowState state = exponentiate(p.row(slot), rules_.guarded || skipped);
          rows[head][static_cast<std::size_t>(slot)].push_back({state, {}, skipped});
        }
        const Matrix<double> o = product(p.unaryExpr([&](double x) { return low(x); }),
                                         scorer_.values(step, static_cast<Index>(head)), sums_);
        for (Index slot = 0; slot < p.rows(); ++slot)
          rows[head][static_cast<std::size_t>(slot)].back().o =
              o.row(slot).unaryExpr([&](double x) { return sum(x); });
      }
    }
    return rows;
  }

  /// Replaces the scores of a row by e^{score - m}.
  [[nodiscard]] RowState exponentiate(auto row, bool guarded) const {
    RowState state;
    state.m = rules_.maximum(row.maxCoeff());
    const bool nothing = state.m == minus_infinity && guarded;
    for (double& score : row) score = nothing ? 0 : sum(std::exp(score - state.m));
    state.l = sum(row.sum());
    return state;
  }

  [[nodiscard]] std::vector<std::vector<Forward::Piece>> pieces(
      const std::vector<std::vector<RowSteps>>& rows) const {
    const Case& c = problem_.the_case;
    std::vector<std::vector<Forward::Piece>> all(rows.front().front().size());
    for (std::size_t step = 0; step < all.size(); ++step)
      for (const std::vector<RowSteps>& head : rows) {
        Forward::Piece piece{Matrix<double>(slots_.count(), c.dim), Vector<double>(slots_.count())};
        for (Index slot = 0; slot < slots_.count(); ++slot) {
          const RowStep& row = head[static_cast<std::size_t>(slot)][step];
          piece.out.row(slot) = row.out(true);
          piece.lse(slot) = row.state.lse();
        }
        all[step].push_back(std::move(piece));
      }
    return all;
  }

  /// The online merge: (o, m, l) of each step in turn.
  [[nodiscard]] RowStep merged_states(const RowSteps& steps) const {
    RowStep all = steps.front();
    for (std::size_t i = 1; i < steps.size(); ++i) {
      const RowState& add = steps[i].state;
      if (steps[i].skipped) continue;
      const double m = std::max(all.state.m, add.m);
      const Factors factor = rules_.factors(all.state.m, add.m, m);
      all.o = (factor.o * all.o + factor.new_o * steps[i].o).unaryExpr([&](double x) { return sum(x); });
      all.state.l = sum(factor.l * all.state.l + factor.new_l * add.l);
      all.state.m = m;
    }
    return all;
  }

  /// The merge of normalised pieces (out, lse). As a state: o = out, m = lse, l = 1.
  [[nodiscard]] RowStep merged_pieces(const RowSteps& steps) const {
    RowVector out = RowVector::Zero(problem_.the_case.dim);
    PieceState all;
    for (const RowStep& step : steps) {
      const bool has_keys = step.state.l > 0;
      const PieceState piece{has_keys ? sum(step.state.lse() / rules_.lse_unit) : rules_.lse_of_nothing,
                             step.state.m, has_keys ? 1 : 0};
      if (piece.lse == minus_infinity) continue;
      if (all.lse == minus_infinity) {
        out = step.out(true);
        all = piece;
      } else {
        const Weights weight = rules_.weights(all, piece);
        out = weight.out * out + weight.new_out * step.out(true);
        all = {weight.lse, weight.m, all.steps + piece.steps};
      }
      out = out.unaryExpr([&](double x) { return rounded(x, rules_.out_kept_in.value_or(sums_)); });
      all.lse = rounded(all.lse, rules_.lse_kept_in.value_or(sums_));
    }
    return {{all.lse, all.lse == minus_infinity ? 0.0 : 1.0}, out};
  }

  void add_sink(RowStep& row, Index head, const RowSteps& steps) const {
    if (problem_.sinks.empty()) return;
    const double sink = problem_.sinks[static_cast<std::size_t>(rules_.sink_head(problem_, head))];
    const auto with_keys = std::ranges::count_if(steps, [](const RowStep& step) { return step.state.l > 0; });
    const double times = rules_.sink_times(static_cast<int>(with_keys), slots_.ranks());
    if (times == 0) return;
    const double m = std::max(row.state.m, sink), factor = rescale(row.state.m, m);
    row.o *= factor;
    row.state.l = row.state.l * factor + times * std::exp(sink - m);
    row.state.m = m;
  }

  [[nodiscard]] RowVector finished(const RowStep& row) const {
    return rules_.normalised ? row.out(rules_.guarded) : row.o;
  }

  [[nodiscard]] double returned_lse(const RowStep& row, const RowSteps& steps) const {
    const double lse = rules_.guarded ? row.state.lse() : row.state.m + std::log(row.state.l);
    std::vector<RowState> states;
    for (const RowStep& step : steps) states.push_back(step.state);
    return sum(rules_.returned_lse(states, lse));
  }

  const Problem& problem_;
  const Rules& rules_;
  Precision precision_, sums_;
  Slots slots_;
  Scorer scorer_;
};

}  // namespace

Forward simulate_forward(const Problem& problem, const Rules& rules, Precision precision) {
  return ForwardRing(problem, rules, precision).run();
}

}  // namespace ring_attention::diagnose
