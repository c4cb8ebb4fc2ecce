/// \file
/// What `ring-attention bench` was asked to do.
#pragma once

#include "cli/device_options.hpp"
#include "program/partition_options.hpp"
#include "program/trace/options.hpp"
#include "program/watchdog.hpp"

namespace ring_attention {

/// The flags of `bench`, with their defaults. A flag that `run` has too means the same here.
struct BenchOptions : DeviceOptions, PartitionOptions, TraceOptions {
  Index batch = 1, seq = 8192, heads = 8, dim = 64;
  Index kv_heads = 0;  ///< 0: as many as heads
  bool causal = false;
  bool backward = false;
  std::string placement = "compare";  ///< or one to measure
  Index repetitions = 5;
  bool json = false;

  [[nodiscard]] Shape q() const { return {batch, heads, seq, dim}; }
  [[nodiscard]] Shape kv() const { return {batch, kv_heads == 0 ? heads : kv_heads, seq, dim}; }
};

/// Adds the flags of `bench` to a command.
void declare_bench_options(CommandLine& command, BenchOptions& options);

/// \throws InputError, one line
void validate(const BenchOptions& options);

/// Measures and prints the times of a ring on this job's machines. Collective; returns the exit code.
/// \param options  valid, and the same on all ranks
int bench_command(const Communicator& comm, const BenchOptions& options, Activity& activity);

}  // namespace ring_attention
