/// \file
/// `TracedLinks`: links that write to a trace what they send and how long they wait.
#pragma once

#include "program/trace/trace.hpp"
#include "ring_attention/parallel/links.hpp"

namespace ring_attention {

/// Passes every call on to other links. A hop is a slice from start() to the end of finish(), and the wait in finish() a
/// slice in it, as long as the transport counts it. An exchange of pieces is a slice, with a wait in it.
class TracedLinks : public Links {
 public:
  /// All outlive this object. \param ulysses, ring  along which `links` were made
  TracedLinks(Links& links, Trace& trace, const Axis& ulysses, const Axis& ring, int rank);

  [[nodiscard]] std::unique_ptr<Transport> transport(Channel channel, std::size_t most_bytes) override;
  [[nodiscard]] AllToAll& ring() override { return *ring_; }
  [[nodiscard]] AllToAll& ulysses() override { return *ulysses_; }
  [[nodiscard]] std::unique_ptr<AllToAll> group(const Axis& axis) override;
  void progress() override { links_.progress(); }

 private:
  Links& links_;
  Trace& trace_;
  Axis axis_;  // of the ring
  int rank_;   // of the job
  std::unique_ptr<AllToAll> ring_, ulysses_;
};

/// The other end of `axis` at `index`: a rank of the job.
struct TracedGroup {
  Trace& trace;
  Track track;
  Axis axis;
  int rank;

  [[nodiscard]] int at(int index) const { return axis.at(rank, index); }
};

/// \param group, where  outlive it
[[nodiscard]] std::unique_ptr<AllToAll> traced(AllToAll& group, const TracedGroup& where);
[[nodiscard]] std::unique_ptr<Transport> traced(std::unique_ptr<Transport> transport,
                                                const TracedGroup& where);

}  // namespace ring_attention
