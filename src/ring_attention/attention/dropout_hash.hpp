/// \file
/// The hash of one pair of a dropout mask. It includes nothing, so that kernels of every device use this source.
#pragma once

#ifdef __CUDACC__
#define RING_ATTENTION_INLINE __forceinline__ __host__ __device__
#else
#define RING_ATTENTION_INLINE [[gnu::always_inline]]
#endif

namespace ring_attention {

/// The word of a key, once a key: its position, mod 2^32, times an odd constant (2^32 over the golden ratio).
template <class Word>
[[nodiscard]] RING_ATTENTION_INLINE constexpr Word dropout_key(Word position) {
  return position * 0x9e3779b9U;
}

/// The word of a pair: uniform in 0 .. 2^32 - 1. `Word` is an unsigned 32-bit integer, or a vector of them.
/// \param low, high  the two words of the query's row (DropoutRow)
/// \param key        dropout_key() of the key's position
///
/// The constants and shifts are lowbias32 (Wellons, Prospecting for Hash Functions). The second word of the row
/// enters between its two multiplications: with one word of 32 bits, two of about 2^16 rows would share a mask.
template <class Word>
[[nodiscard]] RING_ATTENTION_INLINE constexpr Word dropout_word(Word low, Word high, Word key) {
  Word x = low ^ key;
  x ^= x >> 16U;
  x *= 0x7feb352dU;
  x += high;
  x ^= x >> 15U;
  x *= 0x846ca68bU;
  x ^= x >> 16U;
  return x;
}

}  // namespace ring_attention

#undef RING_ATTENTION_INLINE
