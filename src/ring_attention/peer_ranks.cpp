#include "ring_attention/peer_ranks.hpp"

#include "ring_attention/parallel/peer_links.hpp"

namespace ring_attention {
namespace {

class PeerRanks : public AttentionRanks {
 public:
  explicit PeerRanks(Peers& peers) : peers_(peers), all_(peers, {1, peers.size()}) {}

  [[nodiscard]] AllToAll& all() override { return all_; }
  void unite(std::span<std::byte> bytes) override { peers_.unite(bytes); }
  [[nodiscard]] std::unique_ptr<Links> make_links(const RankGrid& grid) override {
    return std::make_unique<PeerLinks>(peers_, grid.ulysses, grid.ring);
  }

 private:
  Peers& peers_;
  PeerAllToAll all_;
};

}  // namespace

std::shared_ptr<AttentionRanks> peers(Peers& of) { return std::make_shared<PeerRanks>(of); }

}  // namespace ring_attention
