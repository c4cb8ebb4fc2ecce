#include "ring_attention/parallel/term_gradients.hpp"

#include <cmath>

#include "ring_attention/attention/sink_gradient.hpp"
#include "ring_attention/core/error.hpp"
#include "ring_attention/parallel/collectives/sum.hpp"

namespace ring_attention {
namespace {

/// NaN if any rank's is. Collective.
double largest(AllToAll& ranks, double value) {
  std::vector<double> all(static_cast<std::size_t>(ranks.size()));
  all_gather<double>(ranks, std::span(&value, 1), all);
  for (const double one : all)
    if (std::isnan(one) || one > value) value = one;
  return value;
}

}  // namespace

void require_exact_bias_gradient(const std::optional<Shape>& bias, const Shape& q, const RankGrid& grid) {
  if (bias && bias->heads == 1 && q.heads > 1 && grid.ulysses.size > 1)
    throw InputError(
        "the same bits: the gradient of a bias that broadcasts over heads depends on how many ranks share "
        "heads: take a "
        "ring or an all-gather, or give the bias for every head");
}

void all_reduce(AllToAll& ranks, TermNumbers& numbers) {
  each_number(
      [&](const char*, std::span<double> sums) {
        if (!sums.empty()) all_reduce(ranks, sums);
      },
      numbers);
}

template <class T>
void complete(TermGradients<T>& gradients, AllToAll& ranks, const BackwardInputs<T>& inputs,
              const Scoring& scoring, bool exact, const Shape& shape) {
  const std::vector<double>& sinks = scoring.sinks;
  double unit = 0;
  if (exact && !sinks.empty())
    unit = exact_sink_unit(largest(ranks, largest_sink_term(inputs, sinks)), shape.batch * shape.seq);
  gradients.sinks = sink_gradient(inputs, sinks, unit);
}

template void complete(TermGradients<float>&, AllToAll&, const BackwardInputs<float>&, const Scoring&, bool,
                       const Shape&);
template void complete(TermGradients<double>&, AllToAll&, const BackwardInputs<double>&, const Scoring&, bool,
                       const Shape&);

}  // namespace ring_attention
