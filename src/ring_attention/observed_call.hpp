/// \file
/// `observed()`: processors and ranks of ring_attention.hpp that tell observers what a rank does.
///
///     const ra::Attention ring{ra::observed(ra::mpi(comm), {&observer}), ra::observed(ra::cores(4), {&observer})};
#pragma once

#include "ring_attention/attention_ranks.hpp"
#include "ring_attention/parallel/observer.hpp"
#include "ring_attention/parallel/processor.hpp"

namespace ring_attention {

/// The processor, whose engines tell the observers of steps and tiles. \param by  outlive the result
/// \ingroup public_api
[[nodiscard]] Processor observed(const Processor& processor, const Observers& by);
/// The ranks, whose messages tell the observers of hops and exchanges. \param by  outlive the result
/// \ingroup public_api
[[nodiscard]] std::shared_ptr<AttentionRanks> observed(std::shared_ptr<AttentionRanks> ranks, Observers by);

}  // namespace ring_attention
