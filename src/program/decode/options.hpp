/// \file
/// What `ring-attention decode` was asked to do.
#pragma once

#include "program/run/options.hpp"
#include "program/watchdog.hpp"

namespace ring_attention {

/// The flags of `decode`, with their defaults. A flag that `run` has too means the same here; those that `decode` does
/// not have keep their defaults, except that a query never sees a key behind it.
struct DecodeOptions : RunOptions {
  std::optional<Index> prompt;  ///< tokens before the first that is decoded; else half of them

  DecodeOptions() { causal = true; }
};

/// Adds the flags of `decode` to a command.
void declare_decode_options(CommandLine& command, DecodeOptions& options);

/// Checks flags that depend on each other, before any file is opened.
/// \throws InputError, one line
void validate(const DecodeOptions& options);

/// Attention of a prompt on a ring, then one token after the other against the sharded cache. Collective; returns the
/// exit code: 0, or 1 when --check failed (then nothing is written).
/// \param options  valid, and the same on all ranks
/// \throws AgreedError for bad input
int decode_command(const Communicator& comm, const DecodeOptions& options, Activity& activity);

}  // namespace ring_attention
