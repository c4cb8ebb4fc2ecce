/// \file
/// Attention whose bits do not depend on how many ranks and threads compute it: what a device needs. The engines are
/// SameBitsEngine (exact/forward.hpp) and SameBitsBackward (exact/backward.hpp).
#pragma once

#include <memory>

#include "ring_attention/attention/backward_engine.hpp"
#include "ring_attention/attention/gradient_accumulator.hpp"
#include "ring_attention/cpu/engine.hpp"

namespace ring_attention {

/// A SameBitsEngine that has begun on these queries.
/// \param value_dim  columns of v
/// \throws InputError as the engine does
[[nodiscard]] std::unique_ptr<Engine<float>> same_bits_forward(const Scoring& scoring,
                                                               const CpuOptions& options, View<const float> q,
                                                               const TokenRanges& ranges,
                                                               View<const float> bias, Index value_dim);
/// A SameBitsBackward that has begun on these queries. \param most_keys  that arrive at a time
[[nodiscard]] std::unique_ptr<BackwardEngine<float>> same_bits_backward(const Scoring& scoring,
                                                                        const CpuOptions& options,
                                                                        Index most_keys,
                                                                        const BackwardInputs<float>& inputs,
                                                                        const TokenRanges& ranges);
/// dK,dV as rows of exact sums. \param terms  how many tiles of queries add to a row, over all ranks
[[nodiscard]] GradientAccumulator same_bits_accumulator(Index dim, Index terms);

}  // namespace ring_attention
