#include "ring_attention/parallel/sinks.hpp"

#include <cmath>

namespace ring_attention {

template <class T>
std::vector<double> sink_gradient_over_ranks(const Communicator& comm, const BackwardInputs<T>& inputs,
                                             const std::vector<double>& sinks, bool exact,
                                             const Shape& shape) {
  double unit = 0;
  if (exact && !sinks.empty()) {
    const double largest = max_over_ranks(comm, largest_sink_term(inputs, sinks));
    const auto rows = static_cast<double>(shape.batch * shape.seq);
    if (largest > 0 && std::isfinite(largest))
      unit = std::ldexp(1.0, std::ilogb(largest) + 1 + std::ilogb(rows) + 1 - 53);
  }
  std::vector<double> sum = sink_gradient(inputs, sinks, unit);
  sum_over_ranks(comm, std::span<double>(sum));
  return sum;
}

template std::vector<double> sink_gradient_over_ranks(const Communicator&, const BackwardInputs<float>&,
                                                      const std::vector<double>&, bool, const Shape&);
template std::vector<double> sink_gradient_over_ranks(const Communicator&, const BackwardInputs<double>&,
                                                      const std::vector<double>&, bool, const Shape&);

}  // namespace ring_attention
