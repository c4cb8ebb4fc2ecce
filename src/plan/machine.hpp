/// \file
/// `Machine`: what a device computes, holds and sends.
#pragma once

#include <string>
#include <vector>

#include "ring_attention/core/shape.hpp"

namespace ring_attention::plan {

/// A message of b bytes takes alpha + b / beta seconds.
struct LinkClass {
  double alpha = 0;  ///< seconds
  double beta = 0;   ///< bytes/s, one direction

  [[nodiscard]] double seconds(double bytes) const { return bytes > 0 ? alpha + bytes / beta : 0; }
};

/// Equal devices in equal nodes. Devices of a node reach each other by a link of their own; devices of different nodes
/// share the NICs of their nodes. All rates are sustained, not peak.
struct Machine {
  std::string name, source;
  double linear_flops = 0;     ///< FLOP/s of a device in products of large matrices
  double attention_flops = 0;  ///< FLOP/s of a device in attention, forward, heads of 128
  double memory = 0;           ///< bytes of a device
  double memory_rate = 0;      ///< bytes/s
  Index node = 8;              ///< devices of a node
  Index nics = 8;              ///< of a node
  LinkClass link, nic;
  double peak_flops = 0;  ///< FLOP/s of a device by its data sheet, for the model FLOP utilisation
  bool hides = true;      ///< messages travel while a device computes; false: they cost it its time

  /// FLOP/s of attention with heads of `dim`: heads below 128 reach 0.77 of that (FlashAttention-3 on an H100,
  /// causal, 16k tokens: 473 TFLOP/s with 64, 616 with 128).
  [[nodiscard]] double attention_rate(Index dim) const { return attention_flops * (dim < 128 ? 0.77 : 1); }

  /// The link of one of `flows` equal flows that leave a node at the same time.
  [[nodiscard]] LinkClass shared_nic(double flows) const;
};

/// 8xh100, 8xh200, 8xa100, tpu-v4: nodes of eight with a NIC a device, and a torus without nodes.
[[nodiscard]] const std::vector<Machine>& named_machines();

/// Ranks of one host, each on a core: 118 GFLOP/s (docs/results.md), merges included; messages are copies that the core
/// itself makes, at 4 GB/s (assumed). Nothing is hidden, so the fewest bytes win, whatever the rates.
[[nodiscard]] Machine cpu_host();

/// \throws InputError, which lists the names, for another one
[[nodiscard]] Machine machine_named(const std::string& name);

/// \throws InputError unless all rates and sizes are positive and finite
void validate(const Machine& machine);

}  // namespace ring_attention::plan
