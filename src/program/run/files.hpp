/// \file
/// `RunFiles`: what `run` and `decode` read, warn of, write and print.
#pragma once

#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>

#include "program/run/input.hpp"
#include "program/run/report.hpp"
#include "program/run/results.hpp"
#include "program/watchdog.hpp"

namespace ring_attention {

/// Every function is collective. \tparam T  of the arrays of the host
template <class T>
class RunFiles {
 public:
  /// \param report  gets the warnings
  RunFiles(const Communicator& comm, const RunOptions& options, const RunInput& input, Activity& activity,
           RunReport& report)
      : comm_(comm), options_(options), input_(input), activity_(activity), report_(report) {
    report_.q = input.q();
    report_.kv = input.kv();
    report_.dtype = sizeof(T) == sizeof(double) ? "float64" : "float32";
    report_.scale = input.scoring().scale;
  }

  void warn(const std::string& line) {
    report_.warnings.push_back(line);
    if (comm_.rank() == 0) std::fprintf(stderr, "warning: %s\n", line.c_str());
  }

  /// The tokens at `ranges`. \param counts  false on a rank whose tokens another rank has, too, and counts
  [[nodiscard]] Tensor<T> read(InputArray array, const TokenRanges& ranges, bool counts = true) {
    Tensor<T> shard = input_.template read<T>(array, ranges);
    require_finite(array, shard.view(), ranges, counts);
    return shard;
  }
  /// Warns of numbers that are not finite; with --check they are an error. \param first_head  that of the shard
  void require_finite(InputArray array, View<const T> shard, const TokenRanges& ranges, bool counts = true,
                      Index first_head = 0) {
    activity_.beat();  // an array has been read
    const View<const T> counted = counts ? shard : View<const T>(nullptr, shard.shape().with_seq(0));
    const std::string line =
        input_.template non_finite<T>(comm_, array, counted, counts ? ranges : TokenRanges{}, first_head);
    if (line.empty() || std::ranges::count(report_.warnings, line) > 0) return;
    if (options_.check) throw AgreedError(line + ": --check needs finite arrays");
    warn(line);
  }

  /// Opens out and lse, unless nothing is to be written.
  void open() {
    if (options_.out.empty()) return;
    results_.emplace(comm_, options_.out);
    const std::size_t n = input_.dimensions();
    const Shape &q = input_.q(), out = input_.out();
    add("out", out, array_extents(out, n));
    add("lse", q.per_row(), row_extents(q.per_row(), n));
  }
  void add(const std::string& name, const Shape& shape, const std::vector<Index>& extents) {
    if (results_) results_->add(name, shape, extents, dtype_of<T>());
  }
  /// Is there something to be written? Nothing, when a check has failed.
  [[nodiscard]] bool writes() const { return results_ && !report_.is_wrong(); }
  void write(const std::string& name, View<const T> shard, const TokenRanges& ranges) {
    results_->write<T>(name, shard, ranges);
  }
  void write(const AttentionResult<T>& rows, const TokenRanges& ranges) {
    write("out", rows.out, ranges);
    write("lse", rows.lse, ranges);
  }
  void commit(const std::string& report) { results_->commit(report); }

  /// The report, and what has been written.
  void print(const std::string& report) const {
    if (comm_.rank() != 0) return;
    std::fputs(report.c_str(), stdout);
    if (!report_.ok())
      std::fprintf(stderr, "error: %s%s\n", check_error(report_).c_str(),
                   results_ && !writes() ? "; nothing was written" : "");
    if (writes() && !options_.json)
      std::printf("\nWrote %s to %s\n", results_->names().c_str(), options_.out.c_str());
  }

 private:
  const Communicator& comm_;
  const RunOptions& options_;
  const RunInput& input_;
  Activity& activity_;
  RunReport& report_;
  std::optional<RunResults> results_;
};

}  // namespace ring_attention
