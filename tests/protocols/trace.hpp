// What the ranks of a ring did, and the assertions of the models (*.pml) on it.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "ring_attention/ring/topology.hpp"

namespace ring_attention::test {

enum class Act : int {
  lend,  // memory is given to a message: from here on it may be read (send) or written (receive)
  put,   // the same for the send of a one-sided message, which reads it; posted is the signal behind the data
  post,  // the message may be matched by the other rank
  wait,  // returns when the other rank has posted its side
  give_back,  // the memory belongs to the rank again
  begin,      // of a compute
  end,
  barrier,
  complete,  // the gradients are complete
};
enum class Side : int { send, receive };

/// One thing that a rank did. Which members count depends on `act`.
struct Event {
  Act act = Act::barrier;
  Side side = Side::send;  // lend, put, post, wait, give_back
  int channel = 0;
  const std::byte* memory = nullptr;  // lend, put, begin
  std::size_t bytes = 0;
  double label =
      0;  // begin, end: the rank whose K,V are in the memory; complete: the sum of 2^rank over all that added
  double want = -1;  // what the label must be; -1: K,V that no query here sees
};

/// What one rank did, in the order of its calls.
using Trace = std::vector<Event>;

/// Memory: no message is received into memory that is being sent, received into or computed with; none is sent from, and
/// no compute reads, memory that a message still writes; no signal is posted before its data are there; and every compute
/// has the K,V of owner(t).
class MemoryCheck {
 public:
  /// What is wrong; empty: nothing.
  static std::string of(const Trace& trace) {
    MemoryCheck check;
    for (const Event& event : trace)
      if (std::string wrong = check.next(event); !wrong.empty()) return wrong;
    return check.open_.empty() ? "" : "a message is under way at the end";
  }

 private:
  struct Open {
    Event event;
    bool computes;
  };

  [[nodiscard]] std::string next(const Event& event) {
    const bool computes = event.act == Act::begin;
    if (event.act == Act::post && event.side == Side::send)
      for (const Open& open : open_)
        if (open.event.act == Act::put && open.event.channel == event.channel)
          return "signals data that may not have arrived";
    if (event.act == Act::lend || event.act == Act::put || computes) {
      const bool writes = !computes && event.side == Side::receive;
      for (const Open& open : open_)
        if (overlap(open.event, event) && (writes || is_written(open)))
          return words(event, computes) + " memory " + words_of_use(open);
      open_.push_back({event, computes});
    }
    if (event.act == Act::give_back || event.act == Act::end)
      std::erase_if(open_, [&](const Open& open) {
        if (event.act == Act::end) return open.computes;
        return !open.computes && open.event.channel == event.channel && open.event.side == event.side;
      });
    const bool labelled = computes || event.act == Act::end || event.act == Act::complete;
    if (labelled && event.want >= 0 && !(event.label == event.want))
      return "has " + std::to_string(event.label) + " where " + std::to_string(event.want) + " is due";
    return "";
  }

  static bool is_written(const Open& open) { return !open.computes && open.event.side == Side::receive; }
  static bool overlap(const Event& a, const Event& b) {
    return a.memory < b.memory + b.bytes && b.memory < a.memory + a.bytes;
  }
  static std::string words(const Event& event, bool computes) {
    if (computes) return "computes with";
    return event.side == Side::send ? "sends from" : "receives into";
  }
  static std::string words_of_use(const Open& open) {
    if (open.computes) return "that a compute still reads";
    return is_written(open) ? "that a message still writes" : "that is still being sent";
  }

  std::vector<Open> open_;
};

/// Progress: all ranks reach the end of their traces if a send waits for its receive, except for `buffered` messages a
/// link. The order of calls decides that, not the time: a trace of a small run, which MPI's buffers let through, shows
/// the deadlock of a large one.
class ProgressCheck {
 public:
  /// What is wrong; empty: nothing.
  static std::string of(const std::vector<Trace>& traces, int buffered) {
    ProgressCheck check(traces, buffered);
    bool moved = true;
    while (moved) {
      moved = false;
      for (int rank = 0; rank < check.size(); ++rank)
        while (check.step(rank)) moved = true;
    }
    for (int rank = 0; rank < check.size(); ++rank)
      if (check.at(rank).next < traces[static_cast<std::size_t>(rank)].size())
        return "deadlock: rank " + std::to_string(rank) + " waits without end";
    return check.unmatched();
  }

 private:
  static constexpr int channels = 2;
  struct Rank {
    std::size_t next = 0;  // event
    int posted[channels][2] = {}, waited[channels][2] = {};
    int entered = 0;
    bool in_barrier = false;
  };

  ProgressCheck(const std::vector<Trace>& traces, int buffered)
      : traces_(traces), buffered_(buffered), ranks_(traces.size()) {}

  [[nodiscard]] int size() const { return static_cast<int>(traces_.size()); }
  Rank& at(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }

  /// Does the next thing that rank did, if it may.
  bool step(int rank) {
    Rank& self = at(rank);
    const Trace& trace = traces_[static_cast<std::size_t>(rank)];
    if (self.next == trace.size()) return false;
    const Event& event = trace[self.next];
    const auto side = static_cast<std::size_t>(event.side);
    if (event.act == Act::post) ++self.posted[event.channel][side];
    if (event.act == Act::wait) {
      const bool sends = event.side == Side::send;
      const Ring ring{rank, size()};
      const int theirs = at(sends ? ring.next() : ring.prev()).posted[event.channel][1 - side];
      if (self.waited[event.channel][side] + 1 > theirs + (sends ? buffered_ : 0)) return false;
      ++self.waited[event.channel][side];
    }
    if (event.act == Act::barrier && !pass_barrier(self)) return false;
    ++self.next;
    return true;
  }

  bool pass_barrier(Rank& self) {
    if (!self.in_barrier) ++self.entered;
    self.in_barrier = true;
    for (const Rank& other : ranks_)
      if (other.entered < self.entered) return false;
    self.in_barrier = false;
    return true;
  }

  std::string unmatched() {
    for (int rank = 0; rank < size(); ++rank)
      for (int channel = 0; channel < channels; ++channel)
        if (at(rank).posted[channel][0] != at(Ring{rank, size()}.next()).posted[channel][1])
          return "rank " + std::to_string(rank) + " sends a message that is not received";
    return "";
  }

  const std::vector<Trace>& traces_;
  int buffered_;
  std::vector<Rank> ranks_;
};

/// All assertions on the traces of all ranks.
inline testing::AssertionResult holds(const std::vector<Trace>& traces, int buffered = 0) {
  for (std::size_t rank = 0; rank < traces.size(); ++rank)
    if (const std::string wrong = MemoryCheck::of(traces[rank]); !wrong.empty())
      return testing::AssertionFailure() << "rank " << rank << ' ' << wrong;
  if (const std::string wrong = ProgressCheck::of(traces, buffered); !wrong.empty())
    return testing::AssertionFailure() << wrong;
  return testing::AssertionSuccess() << "all assertions hold";
}

}  // namespace ring_attention::test
