#include "ring_attention/parallel/sinks.hpp"

namespace ring_attention {

template <class T>
std::vector<double> sink_gradient_over_ranks(const Communicator& comm, const BackwardInputs<T>& inputs,
                                             const std::vector<double>& sinks, bool exact,
                                             const Shape& shape) {
  double unit = 0;
  if (exact && !sinks.empty())
    unit = exact_sink_unit(max_over_ranks(comm, largest_sink_term(inputs, sinks)), shape.batch * shape.seq);
  std::vector<double> sum = sink_gradient(inputs, sinks, unit);
  sum_over_ranks(comm, std::span<double>(sum));
  return sum;
}

template std::vector<double> sink_gradient_over_ranks(const Communicator&, const BackwardInputs<float>&,
                                                      const std::vector<double>&, bool, const Shape&);
template std::vector<double> sink_gradient_over_ranks(const Communicator&, const BackwardInputs<double>&,
                                                      const std::vector<double>&, bool, const Shape&);

}  // namespace ring_attention
