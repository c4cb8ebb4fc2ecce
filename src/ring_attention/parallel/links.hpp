/// \file
/// `Links`: what a rank uses to send and receive when ranks share an attention.
#pragma once

#include <cstddef>
#include <memory>

#include "ring_attention/ring/transport.hpp"

namespace ring_attention {

class AllToAll;
struct SharedAttention;

/// Which parcels of a ring a transport moves.
enum class Channel : int { kv, gradients };

/// The ring of a rank, and the groups of ranks with which it exchanges pieces.
class Links {
 public:
  Links() = default;
  Links(const Links&) = delete;
  Links& operator=(const Links&) = delete;
  virtual ~Links() = default;

  /// A transport along the ring. All ranks of the ring make one. \param most_bytes  of a parcel
  [[nodiscard]] virtual std::unique_ptr<Transport> transport(Channel channel, std::size_t most_bytes) = 0;
  /// The ranks of the ring.
  [[nodiscard]] virtual AllToAll& ring() = 0;
  /// The ranks that share heads.
  [[nodiscard]] virtual AllToAll& ulysses() = 0;
  /// The ranks along another axis of the grid. Collective over all ranks.
  [[nodiscard]] virtual std::unique_ptr<AllToAll> group(const Axis& axis) = 0;
  /// Tells them which attention begins.
  virtual void shares(const SharedAttention&) {}
  /// Called between tiles where there is no transport: an all-gather has sent everything before it computes.
  virtual void progress() {}
};

}  // namespace ring_attention
