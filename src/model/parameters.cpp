#include "model/parameters.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "ring_attention/core/error.hpp"
#include "ring_attention/core/mix.hpp"

namespace ring_attention::model {
namespace {

/// Uniform in (0, 1].
double unit(std::uint64_t bits) { return static_cast<double>((bits >> 11U) + 1) * 0x1p-53; }

/// A normal number of variance 1 (Box and Muller).
double normal(std::uint64_t key) {
  const double radius = std::sqrt(-2 * std::log(unit(mix(key))));
  return radius * std::cos(2 * std::numbers::pi * unit(mix(~key)));
}

std::uint64_t key_of(std::uint64_t seed, Index array, std::size_t parameter) {
  return mix(mix(seed) ^ mix((static_cast<std::uint64_t>(array) << 8U) + parameter));
}

Interval all(Index count) { return {0, count}; }

/// The numbers of some heads.
Interval numbers(const Interval& heads, Index dim) { return {heads.begin * dim, heads.end * dim}; }

}  // namespace

ParameterLayout::ParameterLayout(std::vector<Parameter> parameters) : parameters_(std::move(parameters)) {
  for (Parameter& parameter : parameters_) {
    parameter.begin = size_;
    size_ += parameter.size();
  }
}

std::size_t ParameterLayout::number(const std::string& name) const {
  const auto found = std::ranges::find(parameters_, name, &Parameter::name);
  require(found != parameters_.end(), "ParameterLayout: no parameter " + name);
  return static_cast<std::size_t>(found - parameters_.begin());
}

ParameterLayout layer_layout(const ModelShape& s, const TensorPart& part) {
  const double of_width = 1 / std::sqrt(static_cast<double>(s.width));
  const Index attended = s.heads * s.dim, keys = s.kv_heads * s.dim;
  const Interval own = numbers(part.heads, s.dim), own_keys = numbers(part.kv_heads, s.dim);
  const bool first = part.index == 0;
  const Parameter norm{"norm_1", 1, s.width, all(1), all(s.width), 0, false, first};
  Parameter wk{"wk", s.width, keys, all(s.width), own_keys, of_width};
  wk.kv_replicated = part.kv_replicas.size > 1;
  wk.counts = part.kv_replicas.index(part.index) == 0;
  Parameter wv = wk, norm_2 = norm;
  wv.name = "wv";
  norm_2.name = "norm_2";
  return ParameterLayout(
      {norm,
       {"wq", s.width, attended, all(s.width), own, of_width},
       wk,
       wv,
       {"wo", attended, s.width, own, all(s.width), 1 / std::sqrt(static_cast<double>(attended))},
       norm_2,
       {"w1", s.width, s.hidden, all(s.width), part.hidden, of_width},
       {"w2", s.hidden, s.width, part.hidden, all(s.width), 1 / std::sqrt(static_cast<double>(s.hidden))}});
}

ParameterLayout embedding_layout(const ModelShape& s, const TensorPart& part) {
  const bool first = part.index == 0;
  return ParameterLayout(
      {{"embedding", s.vocabulary, s.width, all(s.vocabulary), all(s.width), 1, false, first},
       {"norm", 1, s.width, all(1), all(s.width), 0, false, first}});
}

std::vector<ParameterLayout> layouts(const ModelShape& shape, const TensorPart& part) {
  std::vector<ParameterLayout> all(static_cast<std::size_t>(shape.layers), layer_layout(shape, part));
  all.push_back(embedding_layout(shape, part));
  return all;
}

template <class T>
void initialise(const ParameterLayout& layout, std::uint64_t seed, Index array, Interval kept,
                std::span<T> values) {
  for (std::size_t which = 0; which < layout.parameters().size(); ++which) {
    const Parameter& p = layout.parameters()[which];
    const Index columns = p.columns.end - p.columns.begin;
    const std::uint64_t key = key_of(seed, array, which);
    for (Index i = std::max(kept.begin, p.begin); i < std::min(kept.end, p.elements().end); ++i) {
      const Index row = p.rows.begin + (i - p.begin) / columns;
      const Index column = p.columns.begin + (i - p.begin) % columns;
      const auto counter = static_cast<std::uint64_t>(row * p.all_columns + column);
      const double value = p.deviation > 0 ? p.deviation * normal(key ^ mix(counter)) : 1;
      values[static_cast<std::size_t>(i - kept.begin)] = static_cast<T>(value);
    }
  }
}

template void initialise(const ParameterLayout&, std::uint64_t, Index, Interval, std::span<float>);
template void initialise(const ParameterLayout&, std::uint64_t, Index, Interval, std::span<double>);

}  // namespace ring_attention::model
