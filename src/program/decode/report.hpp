/// \file
/// What `ring-attention decode` did, as text and as JSON.
#pragma once

#include "program/decode/options.hpp"
#include "program/run/report.hpp"

namespace ring_attention {

/// The whole job. Of RunReport: the shapes are those of all tokens, forward_seconds are those of the prompt, and what a
/// rank has sent is what decoding sent, without the prompt.
struct DecodeReport : RunReport {
  Index prompt = 0;             ///< tokens
  double decode_seconds = 0;    ///< of all decoded tokens
  double exchange_seconds = 0;  ///< of these: the most that a rank spent in messages
  Index cache_bytes = 0;        ///< K and V of the rank with the most tokens
  Index ring_bytes = 0;         ///< what a ring would send for the last token, from each rank

  [[nodiscard]] Index decoded() const { return q.seq - prompt; }
  [[nodiscard]] double tokens_per_second() const { return static_cast<double>(decoded()) / decode_seconds; }
  /// Sent for one token by the rank that sends most.
  [[nodiscard]] Index token_bytes() const;
  [[nodiscard]] Index token_messages() const;
};

[[nodiscard]] std::string to_text(const DecodeReport& report, const DecodeOptions& options);
[[nodiscard]] std::string to_json(const DecodeReport& report, const DecodeOptions& options);

}  // namespace ring_attention
