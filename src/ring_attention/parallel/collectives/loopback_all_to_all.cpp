#include "ring_attention/parallel/collectives/loopback_all_to_all.hpp"

#include "ring_attention/core/error.hpp"

namespace ring_attention {

void LoopbackAllToAll::all_to_all(const Pieces& pieces) {
  require_pieces(pieces, rank(), size());
  const auto begin = LoopbackWorld::Clock::now();
  try {
    move(pieces);
  } catch (...) {
    world_.stop();  // other ranks may still read the pieces, which the caller frees now
    throw;
  }
  const std::chrono::duration<double> seconds = LoopbackWorld::Clock::now() - begin;
  count_exchange(statistics_, pieces, rank(), seconds.count());
}

void LoopbackAllToAll::move(const Pieces& pieces) {
  const auto visit_others = [&](auto visit) {
    for (int other = 0; other < size(); ++other)
      if (other != rank()) visit(axis_.at(rank_, other), static_cast<std::size_t>(other));
  };
  constexpr int channel = 2;  // 0 and 1 are the rings'
  const auto own = static_cast<std::size_t>(rank());
  const auto arrival = world_.arrival(bytes_of_others(pieces.send, rank()));
  visit_others(
      [&](int to, std::size_t piece) { world_.send(rank_, to, channel, pieces.send[piece], arrival); });
  world_.copy_(pieces.send[own], pieces.receive[own]);
  visit_others(
      [&](int from, std::size_t piece) { world_.receive(from, rank_, channel, pieces.receive[piece]); });
  visit_others([&](int to, std::size_t) { world_.wait_until_taken(rank_, to, channel); });
}

}  // namespace ring_attention
