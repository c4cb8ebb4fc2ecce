#include "ring_attention/attention/sink.hpp"

#include <string>

#include "ring_attention/core/error.hpp"

namespace ring_attention {

template <class T>
void add_sinks(Partial<T>& partial, const std::vector<double>& sinks) {
  const Shape& q = partial.o.shape();
  require(sinks.empty() || std::ssize(sinks) == q.heads,
          std::to_string(sinks.size()) + " sinks for " + std::to_string(q.heads) + " heads");
  if (sinks.empty()) return;
  const std::vector<T> no_value(static_cast<std::size_t>(q.dim));
  for (Index b = 0; b < q.batch; ++b)
    for (Index h = 0; h < q.heads; ++h) {
      const auto sink = softmax_state(static_cast<T>(sinks[static_cast<std::size_t>(h)]));
      for (Index s = 0; s < q.seq; ++s) {
        T &m = partial.m.view()(b, h, s), &l = partial.l.view()(b, h, s);
        SoftmaxState<T> state{m, l};
        merge_row<T>(state, partial.o.view().row(b, h, s), sink, no_value);
        m = state.m;
        l = state.l;
      }
    }
}

template void add_sinks(Partial<float>&, const std::vector<double>&);
template void add_sinks(Partial<double>&, const std::vector<double>&);

}  // namespace ring_attention
