/// \file
/// Messages over shared links: events, where the recurrence of a ring does not hold.
#pragma once

#include <vector>

#include "plan/machine.hpp"

namespace ring_attention::plan {

/// One message. It occupies all links of its path at once, from the time when the last of them is free: a link serves
/// one message after the other, in the order in which they are ready.
struct Flow {
  std::vector<int> path;  ///< links of the network
  double bytes = 0;
  double ready = 0;  ///< seconds: not sent before
  int after = -1;    ///< not sent before that flow has arrived, either; -1: none
  double arrived = 0;
};

/// When each flow arrives: the longest alpha of its path, and bytes over the smallest beta. A link is free again after
/// bytes over its own beta.
/// \returns the time of the last arrival
double run_flows(const std::vector<LinkClass>& links, std::vector<Flow>& flows);

/// The links of `ranks` devices in nodes: egress and ingress of each device, and of each NIC of a node, in and out.
/// Device d of a node uses NIC d / (node / nics).
class Network {
 public:
  Network(const Machine& machine, int ranks);

  [[nodiscard]] const std::vector<LinkClass>& links() const { return links_; }
  /// The path of a message between two devices: their own links, and the NICs when they are in different nodes.
  [[nodiscard]] std::vector<int> path(int from, int to) const;

 private:
  [[nodiscard]] int nic(int rank) const;  // among all NICs

  int ranks_, node_, nics_;
  std::vector<LinkClass> links_;
};

/// Seconds of an all-to-all among ranks 0 .. ranks - 1: each sends `piece_bytes` to each other one, rank r
/// first to r - 1.
[[nodiscard]] double all_to_all_seconds(const Machine& machine, int ranks, double piece_bytes);

/// Seconds of an all-gather as a ring: ranks - 1 hops of `piece_bytes` one after the other.
[[nodiscard]] double all_gather_seconds(const Machine& machine, int ranks, double piece_bytes);

/// Seconds of a double ring's forward on whole nodes: at the begin of each outer step every rank sends the K,V with
/// which it begins to the same place in the next node, while the node turns its own ring.
/// \param compute  seconds of a step
[[nodiscard]] double double_ring_seconds(const Machine& machine, int nodes, double compute, double hop_bytes);

}  // namespace ring_attention::plan
