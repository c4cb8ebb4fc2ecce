/// \file
/// One `ring-attention run`: read, attend, differentiate, check, write.
#pragma once

#include <chrono>
#include <cstdio>

#include "program/backend.hpp"
#include "program/run/check.hpp"
#include "program/run/report.hpp"
#include "program/run/results.hpp"
#include "ring_attention/ring/backward.hpp"
#include "ring_attention/ring/forward.hpp"

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

  [[nodiscard]] Workload workload() const {
    return {input.q().with_seq(queries.max_tokens()), input.kv().with_seq(keys.max_tokens()), input.scoring(),
            options.wants_gradients()};
  }
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
  using Kv = KvParcel<typename Device::Element, typename Device::Memory>;

 public:
  explicit Job(const RunContext& context)
      : context_(context),
        comm_(context.comm),
        options_(context.options),
        input_(context.input),
        activity_(context.activity),
        query_ranges_(context.query_ranges),
        key_ranges_(context.key_ranges),
        device_({comm_, options_, activity_, context.workload()}) {
    report_.backend = device_.description();
    report_.q = input_.q();
    report_.kv = input_.kv();
    report_.dtype = sizeof(T) == sizeof(double) ? "float64" : "float32";
    report_.scale = input_.scoring().scale;
    report_.q_offset = input_.scoring().mask.offset;
    mine_.tokens = count(query_ranges_);
    mine_.threads = report_.backend.threads;
    if (!report_.backend.warning.empty()) warn(report_.backend.warning);
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

  void warn(const std::string& line) {
    report_.warnings.push_back(line);
    if (comm_.rank() == 0) std::fprintf(stderr, "warning: %s\n", line.c_str());
  }

  void require_finite(InputArray array, View<const T> shard, const TokenRanges& ranges) {
    const std::string line = input_.template non_finite<T>(comm_, array, shard, ranges);
    if (line.empty() || std::ranges::count(report_.warnings, line) > 0) return;
    if (options_.check) throw AgreedError(line + ": --check needs finite arrays");
    warn(line);
  }

  Tensor<T> read_queries(InputArray array) {
    Tensor<T> shard = input_.template read<T>(array, query_ranges_);
    require_finite(array, shard.view(), query_ranges_);
    return shard;
  }

  /// This rank's K,V. Read again for the backward: the ring of the forward has consumed them.
  Kv read_keys() {
    Kv kv(input_.kv(), context_.keys, comm_.rank(), device_.memory());
    const auto read = [&](InputArray array, View<typename Device::Element> to) {
      device_.fill(to, [&](View<T> shard) {
        input_.template read<T>(array, shard, key_ranges_);
        require_finite(array, shard, key_ranges_);
      });
    };
    read(InputArray::k, kv.k());
    read(InputArray::v, kv.v());
    return kv;
  }

  /// Adds what a transport did to this rank's report; returns its exposed seconds.
  double count_statistics(const Watched& transport) {
    mine_.messages_sent += transport.statistics().messages_sent;
    mine_.bytes_sent += transport.statistics().bytes_sent;
    return transport.statistics().exposed_seconds;
  }

  void attend() {
    activity_.enter(Phase::read);
    Stopwatch watch(comm_);
    q_ = read_queries(InputArray::q);
    Kv kv = read_keys();
    report_.read_seconds += watch.lap();

    device_.set_queries(q_, query_ranges_);
    Watched transport = device_.transport(Watched::kv);
    auto engine = device_.forward_engine();
    auto&& ring_engine = device_.ring_engine(engine);
    ring_forward(ring_engine, transport, kv);
    forward_ = device_.finish(engine);
    mine_.forward_exposed_seconds = count_statistics(transport);
    report_.forward_seconds = watch.lap();
  }

  void differentiate() {
    activity_.enter(Phase::read);
    Stopwatch watch(comm_);
    grad_out_ = read_queries(InputArray::grad_out);
    Kv kv = read_keys();
    report_.read_seconds += watch.lap();

    KvParcel<T, typename Device::Memory> sums(input_.kv(), context_.keys, comm_.rank(), device_.memory());
    Watched transport = device_.transport(Watched::kv), gradients = device_.transport(Watched::gradients);
    auto engine = device_.backward_engine(forward_, grad_out_);
    auto&& ring_engine = device_.ring_engine(engine);
    ring_backward(ring_engine, transport, gradients, kv, sums);
    gradients_ = device_.finish(engine, sums);
    mine_.backward_exposed_seconds = count_statistics(transport) + count_statistics(gradients);
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

  const RunContext& context_;
  const Communicator& comm_;
  const RunOptions& options_;
  const RunInput& input_;
  Activity& activity_;
  const TokenRanges &query_ranges_, &key_ranges_;
  Device device_;
  Tensor<T> q_, grad_out_;
  AttentionResult<T> forward_;
  Gradients<T> gradients_;
  RunReport report_;
  RankReport mine_;
};

}  // namespace ring_attention
