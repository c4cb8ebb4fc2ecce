/// \file
/// `same_bits()`: the same bits on any number of ranks and threads, for every placement and partition.
#pragma once

#include <memory>

#include "ring_attention/parallel/processor.hpp"
#include "ring_attention/parallel/same_bits_device.hpp"

namespace ring_attention {

/// All results have the same bits for any number of ranks and threads. Arrays are of float. The placement consists of whole
/// tiles: Placement(kind, Tiling(tile, documents).cuts(tokens), ranks).
/// \param tile  tokens, for example Tiling::default_size  \param threads, isa  as of cores()
[[nodiscard]] inline Processor same_bits(Index tile, int threads = 1, Isa isa = best_isa()) {
  return {std::make_shared<SameBitsDevice>(CpuOptions{threads, isa, tile}), nullptr};
}

}  // namespace ring_attention
