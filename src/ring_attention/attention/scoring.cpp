#include "ring_attention/attention/scoring.hpp"

#include <bit>

#include "ring_attention/core/error.hpp"

namespace ring_attention {

Scoring Scoring::of_heads(const Interval& heads) const {
  Scoring some = *this;
  for (std::vector<double>* numbers : {&some.alibi_slopes, &some.sinks})
    if (!numbers->empty())
      *numbers = std::vector<double>(numbers->data() + heads.begin, numbers->data() + heads.end);
  some.dropout.first_head += heads.begin;
  return some;
}

std::vector<double> alibi_slopes(Index heads) {
  require(heads >= 1, "alibi_slopes: at least one head");
  const auto below = static_cast<Index>(std::bit_floor(static_cast<std::uint64_t>(heads)));
  std::vector<double> slopes;
  for (Index h = 1; h <= below; ++h)
    slopes.push_back(std::exp2(-8.0 * static_cast<double>(h) / static_cast<double>(below)));
  for (Index h = 1; static_cast<Index>(slopes.size()) < heads; h += 2)
    slopes.push_back(std::exp2(-4.0 * static_cast<double>(h) / static_cast<double>(below)));
  return slopes;
}

}  // namespace ring_attention
