/// \file
/// `ring-attention bench decode`: one token against a cache, beside a plain read of the same memory.
#pragma once

#include "cli/device_options.hpp"
#include "program/watchdog.hpp"

namespace ring_attention {

/// The flags of `bench decode`, with their defaults: a layer of Llama 3 8B.
struct BenchDecodeOptions : DeviceOptions {
  Index batch = 1, seq = 65536, heads = 32, kv_heads = 8, dim = 128;
  Index repetitions = 9;
  bool json = false;

  [[nodiscard]] Shape q() const { return {batch, heads, 1, dim}; }
  [[nodiscard]] Shape kv() const { return {batch, kv_heads, seq, dim}; }
};

/// Adds the flags of `bench decode` to a command.
void declare_bench_decode_options(CommandLine& command, BenchDecodeOptions& options);

/// \throws InputError, one line
void validate(const BenchDecodeOptions& options);

/// Measures and prints. Collective; returns the exit code.
/// \param options  valid, and the same on all ranks
int bench_decode_command(const Communicator& comm, const BenchDecodeOptions& options, Activity& activity);

}  // namespace ring_attention
