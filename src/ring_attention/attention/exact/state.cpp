#include "ring_attention/attention/exact/state.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "ring_attention/core/error.hpp"

namespace ring_attention {
namespace {

/// 2^x, also for an x that no int can hold.
double power_of_two(double x) { return std::exp2(std::clamp(x, -3000.0, 3000.0)); }

}  // namespace

ExactRows::ExactRows(const Shape& shape, bool wide)
    : format_{shape.dim, wide}, words_(Shape{shape.batch, shape.heads, shape.seq, format_.words()}) {}

void ExactRows::widen() {
  if (format_.wide) return;
  const Shape& narrow = words_.shape();
  ExactRows wide({narrow.batch, narrow.heads, narrow.seq, format_.dim}, true);
  for (Index b = 0; b < narrow.batch; ++b)
    for (Index h = 0; h < narrow.heads; ++h)
      for (Index s = 0; s < narrow.seq; ++s) wide.at(b, h, s).merge(at(b, h, s));
  *this = std::move(wide);
}

void ExactRows::merge(const ExactRows& other) {
  require(words_.shape() == other.words_.shape(), "ExactRows: rows of one shape merge");
  ExactMemory(format_).add(words_.view().elements(), other.words_.view().elements());
}

Tensor<float> ExactRows::values() const { return exact_values(format_, words_.view()); }

void ExactPartial::widen() {
  o.widen();
  l.widen();
}

void ExactPartial::merge(const ExactPartial& other) {
  o.merge(other.o);
  l.merge(other.l);
}

AttentionResult<float> ExactPartial::finish(const std::vector<double>& sinks) {
  const Shape rows = o.words().shape();
  AttentionResult<float> result{Tensor<float>({rows.batch, rows.heads, rows.seq, o.format().dim}),
                                Tensor<float>(rows.per_row(), -std::numeric_limits<float>::infinity())};
  require(sinks.empty() || std::ssize(sinks) == rows.heads, "a sink for every head");
  for (Index b = 0; b < rows.batch; ++b)
    for (Index h = 0; h < rows.heads; ++h)
      for (Index s = 0; s < rows.seq; ++s) {
        const ExactSum o_row = o.at(b, h, s);
        ExactSum l_row = l.at(b, h, s);
        if (!sinks.empty()) {
          const double sink = sinks[static_cast<std::size_t>(h)] * std::numbers::log2e;
          const auto term = static_cast<float>(std::exp2(sink - std::ceil(sink)));
          if (sink > -std::numeric_limits<double>::infinity()) l_row.add({&term, 1}, std::ceil(sink));
        }
        if (l_row.empty()) continue;
        const double sum = l_row.digits(0);
        result.lse.view()(b, h, s) = static_cast<float>((std::log2(sum) + l_row.unit()) * std::numbers::ln2);
        if (o_row.empty()) continue;
        const double unit = power_of_two(o_row.unit() - l_row.unit());
        for (Index d = 0; d < o.format().dim; ++d)
          result.out.view()(b, h, s, d) = static_cast<float>(o_row.digits(d) / sum * unit);
      }
  return result;
}

}  // namespace ring_attention
