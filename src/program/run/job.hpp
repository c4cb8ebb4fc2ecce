/// \file
/// One `ring-attention run`: read, attend, differentiate, check, write.
#pragma once

#include <chrono>
#include <cstdio>

#include "program/run/check.hpp"
#include "program/run/command.hpp"
#include "program/run/report.hpp"
#include "program/run/results.hpp"
#include "ring_attention/ring/parcel.hpp"

namespace ring_attention {

/// What the parts of a run share: the input, and which of its tokens this rank holds.
struct RunContext {
  RunContext(const Communicator& communicator, const RunOptions& run_options, const RunInput& run_input,
             Activity& run_activity)
      : comm(communicator),
        options(run_options),
        input(run_input),
        activity(run_activity),
        queries(placement_kind_named(options.placement), input.q().seq, comm.size()),
        keys(placement_kind_named(options.placement), input.kv().seq, comm.size()),
        query_ranges(queries.ranges(comm.rank())),
        key_ranges(keys.ranges(comm.rank())) {}

  const Communicator& comm;
  const RunOptions& options;
  const RunInput& input;
  Activity& activity;
  Placement queries, keys;
  TokenRanges query_ranges, key_ranges;  ///< where this rank's tokens stand

  /// Elements of the largest shard of q, and of k.
  [[nodiscard]] Index largest_q_shard() const { return input.q().with_seq(queries.max_tokens()).size(); }
  [[nodiscard]] Index largest_kv_shard() const { return input.kv().with_seq(keys.max_tokens()).size(); }
};

/// Reads this rank's tokens of k or v.
template <class T>
using ReadKeys = std::function<void(InputArray, View<T>)>;

/// Adds what a transport did to a rank's report; returns its exposed seconds.
inline double count_statistics(RankReport& report, const TransportStatistics& statistics) {
  report.messages_sent += statistics.messages_sent;
  report.bytes_sent += statistics.bytes_sent;
  return statistics.exposed_seconds;
}

/// What a job leaves to the device that computes. All arrays are the host's, of type Value; every call is collective.
template <class T>
concept Backend = requires(T backend, const T& constant, RunReport& report, RankReport& mine,
                           const ReadKeys<typename T::Value>& read, const Tensor<typename T::Value>& array,
                           const AttentionResult<typename T::Value>& attended) {
  /// All ranks end together when one cannot have the memory for its shards.
  constant.require_memory();
  constant.describe(report, mine);
  /// Relative rounding error of the input before the arithmetic.
  { constant.input_roundoff() } -> std::convertible_to<double>;
  /// Makes the parcel of this rank's K,V, which the next ring consumes.
  backend.read_keys(read);
  { backend.forward(array, mine) } -> std::same_as<AttentionResult<typename T::Value>>;
  /// From q, out and lse of the forward, and dO.
  { backend.backward(array, attended, array, mine) } -> std::same_as<Gradients<typename T::Value>>;
};

/// Seconds of the slowest rank since it was made or last read.
class Stopwatch {
 public:
  explicit Stopwatch(const Communicator& comm) : comm_(comm) {}
  double lap() {
    const auto now = std::chrono::steady_clock::now();
    return max_over_ranks(comm_, std::chrono::duration<double>(now - std::exchange(last_, now)).count());
  }

 private:
  const Communicator& comm_;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

/// The most memory that this process has held.
[[nodiscard]] Index process_peak_bytes();

/// One run. Every function is collective.
template <Backend Device>
class Job {
  using T = typename Device::Value;

 public:
  Job(const RunContext& place, Device& device)
      : comm_(place.comm),
        options_(place.options),
        input_(place.input),
        activity_(place.activity),
        query_ranges_(place.query_ranges),
        key_ranges_(place.key_ranges),
        device_(device) {
    report_.q = input_.q();
    report_.kv = input_.kv();
    report_.dtype = sizeof(T) == sizeof(double) ? "float64" : "float32";
    report_.scale = input_.scoring().scale;
    report_.q_offset = input_.scoring().mask.offset;
    mine_.tokens = count(query_ranges_);
  }

  int operator()() {
    device_.require_memory();
    std::optional<RunResults> results;
    if (!options_.out.empty()) open(results.emplace(comm_, options_.out));
    allocation::reset_peak();
    attend();
    if (options_.wants_gradients()) differentiate();
    mine_.tensor_bytes = allocation::peak();
    if (options_.check) check();
    mine_.process_bytes = process_peak_bytes();
    device_.describe(report_, mine_);
    report_.ranks = gather(comm_, mine_);
    if (results && report_.ok()) write(*results);
    print(results);
    return report_.ok() ? 0 : 1;
  }

 private:
  void open(RunResults& results) const {
    const std::size_t n = input_.dimensions();
    const Shape& q = input_.q();
    const auto add = [&](const char* name, const Shape& shape) {
      results.add(name, shape, array_extents(shape, n), dtype_of<T>());
    };
    add("out", q);
    results.add("lse", q.per_row(), row_extents(q.per_row(), n), dtype_of<T>());
    if (!options_.wants_gradients()) return;
    add("dq", q);
    add("dk", input_.kv());
    add("dv", input_.kv());
  }

  /// This rank's K,V, from the file: the ring has consumed the parcel of the step before.
  void read_keys() {
    device_.read_keys([&](InputArray array, View<T> shard) {
      input_.template read<T>(array, shard, key_ranges_);
      require_finite(array, shard, key_ranges_);
    });
  }

  void require_finite(InputArray array, View<const T> shard, const TokenRanges& ranges) {
    const std::string line = input_.template non_finite<T>(comm_, array, shard, ranges);
    if (line.empty() || std::ranges::count(report_.warnings, line) > 0) return;
    report_.warnings.push_back(line);
    if (options_.check) throw AgreedError(line + ": --check needs finite arrays");
    if (comm_.rank() == 0) std::fprintf(stderr, "warning: %s\n", line.c_str());
  }

  void attend() {
    activity_.enter(Phase::read);
    Stopwatch watch(comm_);
    q_ = input_.template read<T>(InputArray::q, query_ranges_);
    require_finite(InputArray::q, q_.view(), query_ranges_);
    read_keys();
    report_.read_seconds += watch.lap();
    forward_ = device_.forward(q_, mine_);
    report_.forward_seconds = watch.lap();
  }

  void differentiate() {
    activity_.enter(Phase::read);
    Stopwatch watch(comm_);
    grad_out_ = input_.template read<T>(InputArray::grad_out, query_ranges_);
    require_finite(InputArray::grad_out, grad_out_.view(), query_ranges_);
    read_keys();
    report_.read_seconds += watch.lap();
    gradients_ = device_.backward(q_, forward_, grad_out_, mine_);
    report_.backward_seconds = watch.lap();
  }

  void check() {
    activity_.enter(Phase::check);
    Stopwatch watch(comm_);
    RankResults<T> results{query_ranges_, key_ranges_, &q_, &forward_};
    results.kv_unit = device_.input_roundoff();
    if (options_.wants_gradients()) {
      results.grad_out = &grad_out_;
      results.gradients = &gradients_;
    }
    check_results(comm_, input_, results, mine_, activity_);
    report_.check_seconds = watch.lap();
  }

  void write(RunResults& results) {
    activity_.enter(Phase::write);
    Stopwatch watch(comm_);
    results.write<T>("out", forward_.out, query_ranges_);
    results.write<T>("lse", forward_.lse, query_ranges_);
    if (options_.wants_gradients()) {
      results.write<T>("dq", gradients_.q, query_ranges_);
      results.write<T>("dk", gradients_.k, key_ranges_);
      results.write<T>("dv", gradients_.v, key_ranges_);
    }
    report_.write_seconds = watch.lap();
    results.commit(to_json(report_, options_));
  }

  void print(const std::optional<RunResults>& results) const {
    if (comm_.rank() != 0) return;
    std::fputs((options_.json ? to_json(report_, options_) : to_text(report_, options_)).c_str(), stdout);
    if (!report_.ok())
      std::fprintf(stderr, "error: the check failed%s\n", results ? "; nothing was written" : "");
    else if (results && !options_.json)
      std::printf("\nWrote %s to %s\n", results->names().c_str(), options_.out.c_str());
  }

  const Communicator& comm_;
  const RunOptions& options_;
  const RunInput& input_;
  Activity& activity_;
  const TokenRanges &query_ranges_, &key_ranges_;
  Device& device_;
  Tensor<T> q_, grad_out_;
  AttentionResult<T> forward_;
  Gradients<T> gradients_;
  RunReport report_;
  RankReport mine_;
};

}  // namespace ring_attention
