/// \file
/// Messages over shared links, where the recurrence of a ring does not hold.
#pragma once

#include <vector>

#include "plan/machine.hpp"

namespace ring_attention::plan {

/// One message. It occupies all links of its path at once, from the time when the last of them is free: a link serves
/// one message after the other, in their order.
struct Flow {
  std::vector<int> path;  ///< links of the network
  double bytes = 0;
  double arrived = 0;  ///< seconds
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

}  // namespace ring_attention::plan
