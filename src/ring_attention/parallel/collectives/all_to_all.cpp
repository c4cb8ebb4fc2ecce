#include "ring_attention/parallel/collectives/all_to_all.hpp"

#include <algorithm>

#include "ring_attention/core/error.hpp"

namespace ring_attention {

void count_exchange(TransportStatistics& statistics, const Pieces& pieces, int rank, double seconds) {
  for (int other = 0; other < static_cast<int>(pieces.send.size()); ++other)
    if (other != rank && !pieces.send[static_cast<std::size_t>(other)].empty()) ++statistics.messages_sent;
  statistics.bytes_sent += bytes_of_others(pieces.send, rank);
  statistics.bytes_received += bytes_of_others(pieces.receive, rank);
  statistics.exposed_seconds += seconds;
}

void require_pieces(const Pieces& pieces, int rank, int size) {
  const auto ranks = static_cast<std::size_t>(size), own = static_cast<std::size_t>(rank);
  require(pieces.send.size() == ranks && pieces.receive.size() == ranks,
          "all-to-all: one piece for each rank of the group");
  require(pieces.send[own].size() == pieces.receive[own].size(),
          "all-to-all: the piece of a rank for itself has two lengths");
}

void OneRank::all_to_all(const Pieces& pieces) {
  require_pieces(pieces, 0, 1);
  std::ranges::copy(pieces.send.front(), pieces.receive.front().begin());
}

}  // namespace ring_attention
