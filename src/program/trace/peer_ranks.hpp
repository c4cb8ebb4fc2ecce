/// \file
/// A trace whose ranks are Peers.
#pragma once

#include <memory>

#include "program/trace/trace.hpp"
#include "ring_attention/ring/transports/peers.hpp"

namespace ring_attention {

/// \param peers  outlive the result
[[nodiscard]] std::unique_ptr<TraceRanks> trace_ranks(Peers& peers);

}  // namespace ring_attention
