#include "ring_attention/attention/dropout.hpp"

#include <initializer_list>

#include "ring_attention/attention/dropout_hash.hpp"
#include "ring_attention/core/mix.hpp"

namespace ring_attention {

DropoutRow Dropout::row(Index batch, Index head, Index query) const {
  std::uint64_t word = seed;
  for (const Index number : {static_cast<Index>(step), layer, first_batch + batch, first_head + head, query})
    word = mix(word) ^ static_cast<std::uint64_t>(number);
  word = mix(word);
  return {static_cast<std::uint32_t>(word), static_cast<std::uint32_t>(word >> 32U)};
}

bool Dropout::keeps(const DropoutRow& row, Index key) const {
  return dropout_word(row.low, row.high, dropout_key(static_cast<std::uint32_t>(key))) < threshold();
}

}  // namespace ring_attention
