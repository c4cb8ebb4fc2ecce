/// \file
/// `best_ulysses`: how many of the ranks of an attention should share its heads.
#pragma once

#include "plan/ring_step.hpp"

namespace ring_attention::plan {

/// For a job of attention alone: how many ranks Ulysses should have, of `ranks`; 1: a ring; `ranks`: Ulysses. It is the
/// allowed number whose forward takes least, or its forward and backward, by the closed form.
///
/// \param layer  of one rank: tokens = S / ranks
[[nodiscard]] int best_ulysses(const Attention& layer, int ranks, bool causal, const Machine& machine,
                               bool gradients = false);

}  // namespace ring_attention::plan
