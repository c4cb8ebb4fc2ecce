#include "ring_attention/core/random.hpp"

#include "ring_attention/core/error.hpp"

namespace ring_attention {
namespace {

constexpr std::uint64_t key(const RandomFill& fill) { return mix(fill.seed ^ mix(fill.stream)); }

bool is_spiked(const RandomFill& fill, Index position) {
  if (fill.spike_every <= 0) return false;
  const auto hash = mix(key(fill) ^ mix(~static_cast<std::uint64_t>(position)));
  return hash % static_cast<std::uint64_t>(fill.spike_every) == 0;
}

}  // namespace

double random_element(const RandomFill& fill, const Shape& global, Index batch, Index head, Index position,
                      Index column) {
  const Index counter = ((batch * global.heads + head) * global.seq + position) * global.dim + column;
  const std::uint64_t bits = mix(key(fill) ^ mix(static_cast<std::uint64_t>(counter)));
  const double unit = static_cast<double>(bits >> 11U) * 0x1p-53;  // 53 bits: [0, 1)
  constexpr double sqrt_three = 1.7320508075688772;                // uniform [-a, a) has variance a^2 / 3
  const double value = sqrt_three * (2.0 * unit - 1.0);
  return is_spiked(fill, position) ? fill.spike * value : value;
}

template <class T>
void fill_random(View<T> shard, const RandomFill& fill, const Shape& global, const TokenRanges& ranges) {
  const Shape& shape = shard.shape();
  require(shape == global.with_seq(count(ranges)), "fill_random: the shard " + to_string(shape) +
                                                       " does not fit " + std::to_string(count(ranges)) +
                                                       " tokens of " + to_string(global));
  const std::vector<Index> where = positions(ranges);
  for (Index b = 0; b < shape.batch; ++b)
    for (Index h = 0; h < shape.heads; ++h)
      for (Index s = 0; s < shape.seq; ++s)
        for (Index d = 0; d < shape.dim; ++d)
          shard(b, h, s, d) =
              static_cast<T>(random_element(fill, global, b, h, where[static_cast<std::size_t>(s)], d));
}

template void fill_random(View<float>, const RandomFill&, const Shape&, const TokenRanges&);
template void fill_random(View<double>, const RandomFill&, const Shape&, const TokenRanges&);

}  // namespace ring_attention
