/// \file
/// What `ring-attention run` did, as text and as JSON.
#pragma once

#include <string>
#include <vector>

#include "ring_attention/app/run_options.hpp"
#include "ring_attention/core/compare.hpp"

namespace ring_attention {

/// Errors of one array against the reference.
struct ErrorReport {
  double max = 0, mean = 0, relative = 0;
};

/// One rank's part. Trivially copyable, because ranks send it to rank 0 as bytes.
struct RankReport {
  Index tokens = 0;
  Index messages_sent = 0;
  Index bytes_sent = 0;
  double exposed_seconds = 0;
  Index tensor_bytes = 0;   ///< the most that its tensors held at once, during the ring
  Index process_bytes = 0;  ///< the most that its process held at once (resident set)
  Index rows_checked = 0;   ///< per head; 0 without --check
  bool ok = true;
  ErrorReport out, lse;
};

/// The whole run.
struct RunReport {
  Shape q, kv;
  std::string dtype;
  std::string transport;
  double scale = 0;
  Index q_offset = 0;                                                               ///< only with causal
  double read_seconds = 0, ring_seconds = 0, check_seconds = 0, write_seconds = 0;  ///< slowest rank
  std::vector<std::string> warnings;
  std::vector<RankReport> ranks;

  [[nodiscard]] bool ok() const;
};

[[nodiscard]] std::string to_text(const RunReport& report, const RunOptions& options);
[[nodiscard]] std::string to_json(const RunReport& report, const RunOptions& options);

}  // namespace ring_attention
