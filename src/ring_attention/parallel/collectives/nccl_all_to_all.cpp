#include "ring_attention/parallel/collectives/nccl_all_to_all.hpp"

#include "ring_attention/cuda/device_tensor.hpp"
#include "ring_attention/cuda/stream.hpp"

namespace ring_attention {

void NcclAllToAll::all_to_all(const Pieces& pieces) {
  require_pieces(pieces, rank(), size());
  const auto own = static_cast<std::size_t>(rank());
  const bool waits = !world_->options().enqueues;
  if (waits) cuda::synchronize(compute_, world_->options().moved);  // this rank computes: others see it alive
  NcclHop hop;
  hop.ready.record(compute_);  // the pieces to send are written, and no kernel reads the memory of the others
  hop.ready.block(world_->stream());
  cuda::copy(pieces.receive[own], pieces.send[own], world_->stream());
  if (size() > 1) world_->all_to_all(pieces.send, pieces.receive);
  hop.arrived.record(world_->stream());
  hop.arrived.block(compute_);
  hop.resumed.record(compute_);
  if (waits) world_->wait(hop, "an all-to-all");
  count_exchange(statistics_, pieces, rank(), waits ? hop.arrived.seconds_since(hop.ready) : 0);
  if (!waits) world_->enqueued(std::move(hop));
}

}  // namespace ring_attention
