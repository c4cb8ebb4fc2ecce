/// \file
/// What `ring-attention run` did, as text and as JSON.
#pragma once

#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "program/backend.hpp"
#include "program/placement_choice.hpp"
#include "program/run/options.hpp"
#include "ring_attention/core/compare.hpp"

namespace ring_attention {

/// The results of a run, in the order in which they are reported.
enum class Result { out, lse, dq, dk, dv, dbias, numbers };  ///< numbers: the first of number_names

inline constexpr std::size_t result_count = static_cast<std::size_t>(Result::numbers) + number_names.size();
[[nodiscard]] std::string result_name(std::size_t result);

/// Errors of one array of one rank against the reference.
struct ErrorReport {
  Index rows = 0;  ///< compared, per head; 0: not checked
  bool ok = true;
  bool decides = true;                     ///< false: the check can say nothing (Comparison), so it is not ok
  double max = 0, mean = 0, relative = 0;  ///< not finite where a number is not

  ErrorReport() = default;
  ErrorReport(const Comparison& comparison, Index compared)
      : rows(compared),
        ok(comparison.ok),
        decides(comparison.decides),
        max(comparison.max_error),
        mean(comparison.mean_error),
        relative(comparison.relative_error) {
    const double worst = std::abs(comparison.got - comparison.want);
    if (!std::isfinite(worst)) max = mean = relative = worst;
  }
};

/// One rank's part. Trivially copyable, because ranks send it to rank 0 as bytes.
struct RankReport {
  Index tokens = 0;
  Index threads = 1;
  Index messages_sent = 0;
  Index bytes_sent = 0;
  Index all_to_all_messages = 0, all_to_all_bytes = 0;  ///< of those above
  double forward_exposed_seconds = 0;
  double backward_exposed_seconds = 0;
  Index tensor_bytes = 0;   ///< the largest sum of its tensors, in the ring
  Index process_bytes = 0;  ///< the largest memory of its process (resident set)
  std::array<ErrorReport, result_count> errors;

  [[nodiscard]] ErrorReport& error(Result result) { return errors[static_cast<std::size_t>(result)]; }
  [[nodiscard]] bool ok() const;
  /// Is there an array that is not ok, although the check decides?
  [[nodiscard]] bool is_wrong() const;
};

/// The whole run. Times are those of the slowest rank.
struct RunReport {
  Shape q;
  KvShape kv;
  std::optional<Shape> bias;
  Index bias_bytes = 0;  ///< the most that a rank has of the bias, and of its gradient
  std::string dtype;
  int ulysses = 1;  ///< ranks that share heads
  BackendDescription backend;
  std::optional<Balance> balance;  ///< that was expected of a balanced placement
  double scale = 0;
  Index q_offset = 0;
  double expected_seconds = 0;  ///< of forward and backward, said before; 0: short, or on a GPU
  double read_seconds = 0, forward_seconds = 0, backward_seconds = 0, check_seconds = 0, write_seconds = 0;
  std::vector<std::string> warnings;
  std::vector<RankReport> ranks;

  [[nodiscard]] bool ok() const;
  [[nodiscard]] bool is_wrong() const;
};

/// Parts of a report, which `decode` has, too: the errors, and what hides keys or changes scores, each word behind a comma.
[[nodiscard]] std::string check_table(const RunReport& report);
/// Why the check is not ok, without an end of line.
[[nodiscard]] std::string check_error(const RunReport& report);
[[nodiscard]] std::string mask_words(const RunReport& report, const RunOptions& options);

[[nodiscard]] std::string to_text(const RunReport& report, const RunOptions& options);
[[nodiscard]] std::string to_json(const RunReport& report, const RunOptions& options);

}  // namespace ring_attention
