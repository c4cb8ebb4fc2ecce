/// \file
/// `StagedAllToAll`: an all-to-all of device memory by means of the host, for machines without NCCL.
#pragma once

#include <utility>

#include "ring_attention/cuda/device_tensor.hpp"
#include "ring_attention/cuda/error.hpp"
#include "ring_attention/parallel/all_to_all.hpp"

namespace ring_attention {

/// Moves pieces in device memory through pinned host memory, with an all-to-all that moves host memory, for example
/// MpiAllToAll. exchange() begins when the work that is already on the stream is done. Memory: as much of the host as it
/// sends and receives.
template <class Base>
class StagedAllToAll {
 public:
  /// \param stream  the stream that writes and reads the pieces
  template <class... Arguments>
  explicit StagedAllToAll(cuda::StreamHandle stream, Arguments&&... arguments)
      : stream_(stream), link_(std::forward<Arguments>(arguments)...) {}

  [[nodiscard]] int rank() const { return link_.rank(); }
  [[nodiscard]] int size() const { return link_.size(); }
  [[nodiscard]] const TransportStatistics& statistics() const { return link_.statistics(); }

  void exchange(const Pieces& pieces) {
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
    link_.exchange(staged);
    for (std::size_t rank = 0; rank < pieces.receive.size(); ++rank)
      cuda::copy<std::byte>(pieces.receive[rank], staged.receive[rank], stream_);
    cuda::check(cudaStreamSynchronize(stream_));
  }

 private:
  [[nodiscard]] static Shape buffer_for(const auto& pieces) {
    std::size_t bytes = 0;
    for (const auto& piece : pieces) bytes += piece.size();
    return {1, 1, 1, static_cast<Index>(bytes)};
  }

  cuda::StreamHandle stream_;
  Base link_;
};

}  // namespace ring_attention
