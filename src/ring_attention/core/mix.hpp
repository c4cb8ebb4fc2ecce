/// \file
/// `mix`: the hash behind random numbers that are functions of a counter.
#pragma once

#include <cstdint>

namespace ring_attention {

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection that mixes every bit.
[[nodiscard]] constexpr std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27U)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31U);
}

}  // namespace ring_attention
