// How what a step has found joins what was found before.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "diagnose/mistakes/edits.hpp"
#include "ring_attention/attention/softmax.hpp"

namespace ring_attention::diagnose {
namespace {

using std::numbers::ln2;

/// The right factors of the online merge, edited.
void factors(Rules& rules, void (*change)(Factors& right, double m, double m_merged)) {
  rules.factors = [=, right = rules.factors](double m, double m_new, double m_merged) {
    Factors edited = right(m, m_new, m_merged);
    change(edited, m, m_merged);
    return edited;
  };
}

/// The right lse, and other weights.
void weights(Rules& rules, Weights (*weigh)(const PieceState& before, const PieceState& piece)) {
  rules.weights = [=](const PieceState& before, const PieceState& piece) {
    Weights result = weigh(before, piece);
    result.lse = weights_by_lse(before, piece).lse;
    return result;
  };
}

/// 2^lse where e^lse should be.
Weights merge_in_base_2(const PieceState& before, const PieceState& piece) {
  const Weights scaled = weights_by_lse({before.lse * ln2}, {piece.lse * ln2});
  return {scaled.out, scaled.new_out, scaled.lse / ln2};
}

}  // namespace

std::vector<Edit> merge_edits() {
  return {
      {"average",
       [](Rules& rules) {
         weights(rules, [](const PieceState& before, const PieceState&) {
           const double steps = before.steps;
           return Weights{steps / (steps + 1), 1 / (steps + 1), 0};
         });
       }},
      {"average-in-turn",
       [](Rules& rules) {
         weights(rules, [](const PieceState&, const PieceState&) { return Weights{0.5, 0.5, 0}; });
       },
       directed},
      {"sum-normalised",
       [](Rules& rules) {
         weights(rules, [](const PieceState&, const PieceState&) { return Weights{1, 1, 0}; });
       }},
      {"swapped-sigmoid",
       [](Rules& rules) {
         weights(rules, [](const PieceState& before, const PieceState& piece) {
           const Weights right = weights_by_lse(before, piece);
           return Weights{right.new_out, right.out, 0};
         });
       },
       directed},
      {"merge-by-max",
       [](Rules& rules) {
         weights(rules, [](const PieceState& before, const PieceState& piece) {
           const Weights by_max = weights_by_lse({before.m}, {piece.m});
           return Weights{by_max.out, by_max.new_out, 0, by_max.lse};
         });
       }},
      {"last-wins",
       [](Rules& rules) {
         rules.weights = [](const PieceState&, const PieceState& piece) { return Weights{0, 1, piece.lse}; };
       },
       directed},
      {"merge-base-2",
       [](Rules& rules) {
         rules.weights = weights_by_lse;
         rules.lse_unit = ln2;
       }},
      {"merge-base-2-back", [](Rules& rules) { rules.weights = merge_in_base_2; }},
      {"textbook-lse",
       [](Rules& rules) {
         rules.weights = [](const PieceState& before, const PieceState& piece) {
           const auto in_float = [](double x) { return rounded(x, Precision::float32); };
           const double lse = in_float(before.lse + std::log(1 + in_float(std::exp(piece.lse - before.lse))));
           return Weights{std::exp(before.lse - lse), std::exp(piece.lse - lse), lse};
         };
       },
       directed},
      {"empty-lse-inf",
       [](Rules& rules) {
         rules.weights = weights_by_lse;
         rules.lse_of_nothing = -minus_infinity;
       },
       directed},
      {"bf16-lse",
       [](Rules& rules) {
         rules.weights = weights_by_lse;
         rules.lse_kept_in = Precision::bf16;
       },
       directed},
      {"bf16-out",
       [](Rules& rules) {
         rules.weights = weights_by_lse;
         rules.out_kept_in = Precision::bf16;
       },
       directed},
      {"o-not-rescaled", [](Rules& rules) { factors(rules, [](Factors& f, double, double) { f.o = 1; }); },
       directed},
      {"l-not-rescaled", [](Rules& rules) { factors(rules, [](Factors& f, double, double) { f.l = 1; }); },
       directed},
      {"neither-rescaled",
       [](Rules& rules) { factors(rules, [](Factors& f, double, double) { f.o = f.l = 1; }); }, directed},
      {"new-not-rescaled",
       [](Rules& rules) { factors(rules, [](Factors& f, double, double) { f = {1, 1, 1, 1}; }); }},
      {"factor-inverted",
       [](Rules& rules) {
         factors(rules, [](Factors& f, double m, double m_merged) {
           f.o = f.l = m == minus_infinity ? 0 : std::exp(m_merged - m);
         });
       },
       directed},
  };
}

}  // namespace ring_attention::diagnose
