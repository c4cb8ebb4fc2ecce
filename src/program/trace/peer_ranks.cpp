#include "program/trace/peer_ranks.hpp"

#include <unistd.h>

#include <array>
#include <string>
#include <vector>

#include "ring_attention/attention_ranks.hpp"
#include "ring_attention/mpi/host.hpp"

namespace ring_attention {
namespace {

class PeerMessages : public ClockMessages {
 public:
  explicit PeerMessages(Peers& peers) : peers_(peers) {}

  void send(double value, int to) override {
    peers_.send(std::as_bytes(std::span(&value, 1)), to, tag)->wait();
  }
  double receive(int from, bool) override {
    double value = 0;
    peers_.receive(std::as_writable_bytes(std::span(&value, 1)), from, tag)->wait();
    return value;
  }

 private:
  static constexpr int tag = 2;

  Peers& peers_;
};

class PeerTraceRanks : public TraceRanks {
 public:
  explicit PeerTraceRanks(Peers& peers) : peers_(peers), ranks_(ranks_of(peers)) {}

  [[nodiscard]] AllToAll& all() override { return ranks_->all(); }
  void agree(const std::function<void()>& validate) override { ring_attention::agree(*ranks_, validate); }
  [[nodiscard]] Machine machine() override {
    std::vector<std::array<char, 256>> buffers(static_cast<std::size_t>(peers_.size()));
    auto& own = buffers[static_cast<std::size_t>(peers_.rank())];
    (void)gethostname(own.data(), own.size() - 1);
    peers_.unite(std::as_writable_bytes(std::span(buffers)));
    std::vector<std::string> names;
    for (const auto& buffer : buffers) names.emplace_back(buffer.data());
    std::vector<int> owners;
    for (int rank = 0; rank < peers_.size(); ++rank) owners.push_back(host_group(rank, names).first);
    PeerMessages messages(peers_);
    return {host_group(peers_.rank(), names).rank > 0, clock_offset(messages, peers_.rank(), owners)};
  }

 private:
  Peers& peers_;
  std::unique_ptr<AttentionRanks> ranks_;
};

}  // namespace

std::unique_ptr<TraceRanks> trace_ranks(Peers& peers) { return std::make_unique<PeerTraceRanks>(peers); }

}  // namespace ring_attention
