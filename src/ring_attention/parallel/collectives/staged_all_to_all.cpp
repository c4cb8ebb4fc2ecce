#include "ring_attention/parallel/collectives/staged_all_to_all.hpp"

#include "ring_attention/cuda/stream.hpp"

namespace ring_attention {
namespace {

Shape buffer_for(const auto& pieces) {
  std::size_t bytes = 0;
  for (const auto& piece : pieces) bytes += piece.size();
  return {1, 1, 1, static_cast<Index>(bytes)};
}

}  // namespace

void StagedAllToAll::all_to_all(const Pieces& pieces) {
  cuda::synchronize(stream_, alive_);
  cuda::PinnedBuffer sent(buffer_for(pieces.send)), received(buffer_for(pieces.receive));
  Pieces staged;
  std::byte* next = sent.data();
  for (const auto& piece : pieces.send) {
    cuda::copy_bytes(next, piece.data(), piece.size(), stream_);
    staged.send.emplace_back(next, piece.size());
    next += piece.size();
  }
  next = received.data();
  for (const auto& piece : pieces.receive) {
    staged.receive.emplace_back(next, piece.size());
    next += piece.size();
  }
  cuda::check(cudaStreamSynchronize(stream_));
  host_->all_to_all(staged);
  for (std::size_t rank = 0; rank < pieces.receive.size(); ++rank)
    cuda::copy<std::byte>(pieces.receive[rank], staged.receive[rank], stream_);
  cuda::check(cudaStreamSynchronize(stream_));
}

}  // namespace ring_attention
