/// \file
/// `peers()`: ranks of ring_attention.hpp that send by an object of the caller's, without MPI.
#pragma once

#include "ring_attention/attention_ranks.hpp"
#include "ring_attention/ring/transports/peers.hpp"

namespace ring_attention {

/// The ranks of Peers. \param of  outlive the result: no function of MPI is called
[[nodiscard]] std::shared_ptr<AttentionRanks> peers(Peers& of);

}  // namespace ring_attention
