#include "ring_attention/attention/sink_gradient.hpp"

#include <algorithm>
#include <cmath>

#include "ring_attention/attention/softmax.hpp"

namespace ring_attention {
namespace {

/// Calls visit(sink, P_sink delta) for every row of every head.
template <class T>
void for_each_sink_term(const BackwardInputs<T>& forward, const std::vector<double>& sinks,
                        const auto& visit) {
  const Shape& q = forward.out.shape();
  for (Index b = 0; b < q.batch; ++b)
    for (std::size_t head = 0; head < sinks.size(); ++head)
      for (Index s = 0; s < q.seq; ++s) {
        const auto h = static_cast<Index>(head);
        double delta = forward.grad_lse ? -static_cast<double>((*forward.grad_lse)(b, h, s)) : 0;
        for (Index d = 0; d < q.dim; ++d)
          delta += static_cast<double>(forward.grad_out(b, h, s, d)) *
                   static_cast<double>(forward.out(b, h, s, d));
        const double p = rescale(static_cast<double>(static_cast<T>(sinks[head])),
                                 static_cast<double>(forward.lse(b, h, s)));
        visit(head, p * delta);
      }
}

}  // namespace

template <class T>
std::vector<double> sink_gradient(const BackwardInputs<T>& forward, const std::vector<double>& sinks,
                                  double unit) {
  std::vector<double> gradient(sinks.size());
  for_each_sink_term(forward, sinks, [&](std::size_t head, double term) {
    gradient[head] -= unit > 0 ? std::rint(term / unit) * unit : term;
  });
  return gradient;
}

template <class T>
double largest_sink_term(const BackwardInputs<T>& forward, const std::vector<double>& sinks) {
  double largest = 0;
  for_each_sink_term(forward, sinks, [&](std::size_t, double term) {
    if (std::isfinite(term)) largest = std::max(largest, std::abs(term));
  });
  return largest;
}

double exact_sink_unit(double largest, Index terms) {
  if (!(largest > 0)) return 0;
  return std::ldexp(1.0, std::ilogb(largest) + 1 + std::ilogb(static_cast<double>(terms)) + 1 - 53);
}

template std::vector<double> sink_gradient(const BackwardInputs<float>&, const std::vector<double>&, double);
template std::vector<double> sink_gradient(const BackwardInputs<double>&, const std::vector<double>&, double);
template double largest_sink_term(const BackwardInputs<float>&, const std::vector<double>&);
template double largest_sink_term(const BackwardInputs<double>&, const std::vector<double>&);

}  // namespace ring_attention
