#include "ring_attention/parallel/nccl_all_to_all.hpp"

#include "ring_attention/cuda/device_tensor.hpp"
#include "ring_attention/cuda/stream.hpp"

namespace ring_attention {

void NcclAllToAll::exchange(const Pieces& pieces) {
  require_pieces(pieces, rank(), size());
  const auto own = static_cast<std::size_t>(rank());
  cuda::synchronize(compute_, world_->options().moved);  // the time limit of NCCL is for the messages
  cuda::Event ready, arrived;
  ready.record(compute_);  // the pieces to send are written, and no kernel reads the memory of the others
  ready.block(world_->stream());
  cuda::copy(pieces.receive[own], pieces.send[own], world_->stream());
  if (size() > 1) world_->all_to_all(pieces.send, pieces.receive);
  arrived.record(world_->stream());
  world_->wait([&] { return arrived.is_done(); }, "an all-to-all");
  count_exchange(statistics_, pieces, rank(), arrived.seconds_since(ready));
  if (world_->options().moved) world_->options().moved();
}

}  // namespace ring_attention
