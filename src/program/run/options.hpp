/// \file
/// What `ring-attention run` was asked to do.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/device_options.hpp"
#include "program/partition_options.hpp"
#include "program/run/mask_flags.hpp"
#include "program/trace/options.hpp"
#include "ring_attention/attention/scoring.hpp"

namespace ring_attention {

/// The flags of `run`, with their defaults.
struct RunOptions : DeviceOptions, PartitionOptions, TraceOptions {
  std::string q, k, v;        ///< input files, or empty with --random
  std::string dout;           ///< gradient of the result, a file; empty: no backward, or --random
  std::vector<Index> random;  ///< B, H, S, D, or empty with files
  Index kv_heads = 0;         ///< of --random; 0: as many as H
  Index value_dim = 0;        ///< of --random: columns of v; 0: D
  Index seed = 1;
  bool backward = false;  ///< with --random: a random dO
  std::string out;        ///< directory of the results; empty: nothing is written
  bool causal = false;
  std::vector<Index> window;  ///< LEFT, RIGHT; -1: unlimited; empty: no window
  std::string documents;      ///< a file of cu_seqlens; empty: one document
  MaskFlags mask;
  bool alibi = false;
  std::string bias;      ///< a file of [B, H, Sq, Sk]; empty: none
  std::string sink;      ///< a file of one logit a head; empty: none
  Scoring scoring = {};  ///< of the flags that are numbers of it
  Index dropout_seed = 1;
  std::optional<Index> q_offset;  ///< key position of query 0; else Sk - Sq
  std::optional<double> scale;    ///< else 1 / sqrt(D)
  std::optional<double> softcap;  ///< else none
  std::string placement = "contiguous";
  bool check = false;
  bool json = false;
  std::string progress = "auto";

  [[nodiscard]] bool is_random() const { return !random.empty(); }
  /// The shape of q, with --random.
  [[nodiscard]] Shape random_shape() const { return {random[0], random[1], random[2], random[3]}; }
  [[nodiscard]] bool wants_gradients() const { return backward || !dout.empty(); }
};

/// Adds the flags of `run` to a command.
void declare_run_options(CommandLine& command, RunOptions& options);

/// Checks flags that depend on each other, before any file is opened.
/// \throws InputError, one line
void validate(const RunOptions& options);

}  // namespace ring_attention
