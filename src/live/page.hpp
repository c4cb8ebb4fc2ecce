/// \file
/// What a page gives a rank, which is an instance of this module: messages, time, and where to write. `PagePeers`: Peers over it.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "ring_attention/parallel/peer_links.hpp"

#define RING_ATTENTION_PAGE(name) __attribute__((import_module("page"), import_name(#name))) extern "C"

RING_ATTENTION_PAGE(send) void page_send(const void* bytes, int size, int to, int tag, double arrives);
/// Suspends the rank until a message is there. Returns when it arrives.
RING_ATTENTION_PAGE(receive) double page_receive(void* bytes, int size, int from, int tag);
/// Lets the page draw, if it has not for a while. \param done  of the run, 0 to 1
RING_ATTENTION_PAGE(rest) void page_rest(double done);
RING_ATTENTION_PAGE(trace) void page_trace(const char* text, int size);
/// What the page shows of a rank or of an array.
RING_ATTENTION_PAGE(tell) void page_tell(const char* json, int size);
/// Ends the run.
RING_ATTENTION_PAGE(fail) void page_fail(const char* sentence, int size);
RING_ATTENTION_PAGE(array) void page_array(const char* name, int letters, const float* data, int size);

namespace ring_attention::live {

/// The time of this rank in seconds. clock_gettime() returns it, so every clock of the library does.
inline double time_of_rank = 0;

/// A link to each other rank: it carries one message after the other.
struct LinkSpeed {
  double latency = 0;           ///< in seconds
  double bytes_per_second = 1;  ///< after it
};

class PagePeers : public Peers {
 public:
  PagePeers(int rank, int size, const LinkSpeed& speed)
      : rank_(rank), size_(size), speed_(speed), free_(static_cast<std::size_t>(size)) {}

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }
  /// The page copies the bytes.
  [[nodiscard]] std::unique_ptr<Message> send(std::span<const std::byte> bytes, int to, int tag) override {
    double& free = free_[static_cast<std::size_t>(to)];
    free = std::max(free, time_of_rank) + static_cast<double>(bytes.size()) / speed_.bytes_per_second;
    page_send(bytes.data(), static_cast<int>(bytes.size()), to, tag, free + speed_.latency);
    return std::make_unique<Sent>();
  }
  [[nodiscard]] std::unique_ptr<Message> receive(std::span<std::byte> bytes, int from, int tag) override {
    return std::make_unique<Awaited>(bytes, from, tag);
  }
  void unite(std::span<std::byte> bytes) override {
    for (int to = 0; to < size_; ++to) send(bytes, to, collective_tag)->wait();
    std::vector<std::byte> theirs(bytes.size());
    for (int from = 0; from < size_; ++from) {
      receive(theirs, from, collective_tag)->wait();
      std::ranges::transform(bytes, theirs, bytes.begin(), std::bit_or());
    }
  }

 private:
  struct Sent : Message {
    void wait() override {}
  };
  struct Awaited : Message {
    Awaited(std::span<std::byte> to, int of, int with) : bytes(to), from(of), tag(with) {}
    void wait() override {
      const double arrives = page_receive(bytes.data(), static_cast<int>(bytes.size()), from, tag);
      time_of_rank = std::max(time_of_rank, arrives);
    }
    std::span<std::byte> bytes;
    int from, tag;
  };

  int rank_, size_;
  LinkSpeed speed_;
  std::vector<double> free_;  // when the link to a rank is
};

}  // namespace ring_attention::live
