// Lesson 12, the idea: mask, bias and dropout of a pair are functions of its positions in the whole sequence.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "ring_attention/attention/dropout.hpp"  // the hash of a pair
#include "ring_attention/attention/softmax.hpp"  // lesson 02: SoftmaxState, merge, rescale

namespace ring_attention::lesson {

/// A query and a key: their positions in the whole sequence, their head among all heads. No rank, no step, no local
/// index.
struct Pair {
  Index batch = 0, head = 0, query = 0, key = 0;
};

struct Rules {
  double scale = 1;
  Index left, right;  // keys that a query sees before and after its own position; right = 0 is causal
  Index offset = 0;   // query i is at position i + offset among the keys: keys - queries
  std::vector<Index> documents{0};  // where each begins, ascending, the first at 0
  std::vector<double> slopes = {};  // ALiBi: one a head, or none
  std::vector<double> sinks = {};   // a logit a head that has no value, or none
  Dropout dropout = {};
};

/// Does the query see the key? A window, within a document.
inline bool visible(const Rules& rules, const Pair& pair) {
  const Index own = pair.query + rules.offset;
  const auto document = [&](Index position) { return std::ranges::upper_bound(rules.documents, position); };
  return own - rules.left <= pair.key && pair.key <= own + rules.right && document(own) == document(pair.key);
}

/// What is added to scale * q.k.
/// \param dense  the query's row of a dense bias, a column a key of the whole sequence; or null
inline double bias(const Rules& rules, const Pair& pair, const double* dense) {
  const auto distance = static_cast<double>(std::abs(pair.query + rules.offset - pair.key));
  const double alibi =
      rules.slopes.empty() ? 0 : -rules.slopes[static_cast<std::size_t>(pair.head)] * distance;
  return alibi + (dense == nullptr ? 0 : dense[pair.key]);
}

/// What dropout multiplies the weight of the value with: 0 for a dropped pair, 1 / (1 - p) for a kept one.
inline double factor(const Rules& rules, const Pair& pair) {
  const DropoutRow row = rules.dropout.row(pair.batch, pair.head, pair.query);
  return rules.dropout.keeps(row, pair.key) ? rules.dropout.scale() : 0;
}

/// One more key of a query: the sum l takes the whole e^s, the value is weighted with factor * e^s.
inline void attend(SoftmaxState<double>& state, std::span<double> o, double s, double factor,
                   std::span<const double> v) {
  const SoftmaxState<double> merged = merge(state, softmax_state(s));
  const double keep = rescale(state.m, merged.m), add = factor * rescale(s, merged.m);
  for (std::size_t d = 0; d < o.size(); ++d) o[d] = keep * o[d] + add * v[d];
  state = merged;
}

/// A sink is a score whose value is dropped. Once a query, when all keys are in.
inline void add_sink(SoftmaxState<double>& state, std::span<double> o, double sink) {
  attend(state, o, sink, 0, o);
}

/// dS of a pair. A dropped pair has dS = -P delta: it takes part in the softmax.
/// \param grad_p  dO . v, as without dropout; dP = factor * grad_p
inline double score_gradient(double p, double factor, double grad_p, double delta) {
  return p * (factor * grad_p - delta);
}

}  // namespace ring_attention::lesson
