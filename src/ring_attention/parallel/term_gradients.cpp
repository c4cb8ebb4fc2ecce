#include "ring_attention/parallel/term_gradients.hpp"

#include "ring_attention/attention/sink_gradient.hpp"

namespace ring_attention {

void sum_over_ranks(const Communicator& comm, TermNumbers& numbers) {
  each_number(
      [&](const char*, std::span<double> sums) {
        if (!sums.empty()) sum_over_ranks(comm, sums);
      },
      numbers);
}

template <class T>
void complete(TermGradients<T>& gradients, const Communicator& comm, const BackwardInputs<T>& inputs,
              const Scoring& scoring, bool exact, const Shape& shape) {
  const std::vector<double>& sinks = scoring.sinks;
  double unit = 0;
  if (exact && !sinks.empty())
    unit = exact_sink_unit(max_over_ranks(comm, largest_sink_term(inputs, sinks)), shape.batch * shape.seq);
  gradients.sinks = sink_gradient(inputs, sinks, unit);
  sum_over_ranks(comm, gradients.numbers());
}

template void complete(TermGradients<float>&, const Communicator&, const BackwardInputs<float>&,
                       const Scoring&, bool, const Shape&);
template void complete(TermGradients<double>&, const Communicator&, const BackwardInputs<double>&,
                       const Scoring&, bool, const Shape&);

}  // namespace ring_attention
