/// \file
/// One `ring-attention run`: read, forward, backward, check, write.
#pragma once

#include <chrono>
#include <cstdio>

#include "program/backend.hpp"
#include "program/run/check.hpp"
#include "program/run/report.hpp"
#include "program/run/results.hpp"
#include "ring_attention/ring/backward.hpp"
#include "ring_attention/ring/forward.hpp"
#include "ring_attention/ring/kv_hops.hpp"

namespace ring_attention {

/// What the parts of a run share: the input, and which of its tokens this rank holds.
struct RunContext {
  const Communicator& comm;
  const RunOptions& options;
  const RunInput& input;
  Activity& activity;
  Placement queries{placement_kind_named(options.placement), input.q().seq, comm.size()};
  Placement keys{placement_kind_named(options.placement), input.kv().seq, comm.size()};
  TokenRanges query_ranges = queries.ranges(comm.rank()), key_ranges = keys.ranges(comm.rank());

  [[nodiscard]] Workload workload() const {
    const Index rows = queries.max_tokens();
    Workload work{input.q().with_seq(rows), input.kv().with_seq(keys.max_tokens()), input.scoring(),
                  options.wants_gradients(), input.bias().size() > 0 ? input.bias().with_seq(rows) : Shape{}};
    if (options.check && work.gradients)  // dbias and its reference, in double
      work.check_bytes = 2 * static_cast<Index>(sizeof(double)) *
                         work.bias.with_seq(checked_rows(work.bias.seq, input.q().seq)).size();
    return work;
  }
};

/// Seconds of the slowest rank since its construction or the last lap.
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

/// The largest memory of this process so far (resident set).
[[nodiscard]] Index process_peak_bytes();

/// One run. Every function is collective.
template <Backend Device>
class Job {
  using T = typename Device::Value;
  using Kv = KvParcel<typename Device::Element, typename Device::Memory>;

 public:
  explicit Job(const RunContext& context)
      : run_(context), device_({run_.comm, run_.options, run_.activity, run_.workload()}) {
    report_.backend = device_.description();
    report_.q = run_.input.q();
    report_.kv = run_.input.kv();
    report_.bias = run_.input.bias();
    report_.bias_bytes = run_.workload().bias_values() * static_cast<Index>(sizeof(T));
    report_.dtype = sizeof(T) == sizeof(double) ? "float64" : "float32";
    report_.scale = run_.input.scoring().scale;
    report_.q_offset = run_.input.scoring().mask.offset;
    mine_.tokens = count(run_.query_ranges);
    mine_.threads = report_.backend.threads;
    if (!report_.backend.warning.empty()) warn(report_.backend.warning);
  }

  int operator()() {
    device_.require_memory();
    std::optional<RunResults> results;
    if (!run_.options.out.empty()) open(results.emplace(run_.comm, run_.options.out));
    allocation::reset_peak();
    attend();
    if (run_.options.wants_gradients()) differentiate();
    mine_.tensor_bytes = allocation::peak();
    if (run_.options.check) check();
    mine_.process_bytes = process_peak_bytes();
    report_.ranks = gather(run_.comm, mine_);
    if (results && report_.ok()) write(*results);
    print(results);
    return report_.ok() ? 0 : 1;
  }

 private:
  void open(RunResults& results) const {
    const std::size_t n = run_.input.dimensions();
    const Shape& q = run_.input.q();
    const auto add = [&](const char* name, const Shape& shape) {
      results.add(name, shape, array_extents(shape, n), dtype_of<T>());
    };
    add("out", q);
    results.add("lse", q.per_row(), row_extents(q.per_row(), n), dtype_of<T>());
    if (!run_.options.wants_gradients()) return;
    add("dq", q);
    add("dk", run_.input.kv());
    add("dv", run_.input.kv());
    if (const Shape& bias = run_.input.bias(); bias.size() > 0)
      results.add("dbias", bias, array_extents(bias, run_.input.bias_dimensions()), dtype_of<T>());
    if (!run_.input.scoring().sinks.empty())
      results.add("dsink", {1, 1, q.heads, 1}, {q.heads}, dtype_of<T>());
  }

  void warn(const std::string& line) {
    report_.warnings.push_back(line);
    if (run_.comm.rank() == 0) std::fprintf(stderr, "warning: %s\n", line.c_str());
  }

  void require_finite(InputArray array, View<const T> shard, const TokenRanges& ranges) {
    run_.activity.beat();  // an array has been read
    const std::string line = run_.input.template non_finite<T>(run_.comm, array, shard, ranges);
    if (line.empty() || std::ranges::count(report_.warnings, line) > 0) return;
    if (run_.options.check) throw AgreedError(line + ": --check needs finite arrays");
    warn(line);
  }

  Tensor<T> read_queries(InputArray array) {
    Tensor<T> shard = run_.input.template read<T>(array, run_.query_ranges);
    require_finite(array, shard.view(), run_.query_ranges);
    return shard;
  }

  /// This rank's K,V. Read again for the backward: the ring of the forward has consumed them.
  Kv read_keys() {
    Kv kv(run_.input.kv(), run_.keys, run_.comm.rank(), device_.memory(),
          kv_hops(run_.input.scoring().mask, run_.queries, run_.keys));
    const auto read = [&](InputArray array, View<typename Device::Element> to) {
      device_.fill(to, [&](View<T> shard) {
        run_.input.template read<T>(array, shard, run_.key_ranges);
        require_finite(array, shard, run_.key_ranges);
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
    run_.activity.enter(Phase::read);
    Stopwatch watch(run_.comm);
    q_ = read_queries(InputArray::q);
    if (run_.input.bias().size() > 0) bias_ = read_queries(InputArray::bias);
    Kv kv = read_keys();
    report_.read_seconds += watch.lap();

    device_.set_queries(q_, run_.query_ranges, bias_);
    Watched transport = device_.transport(Watched::kv);
    auto engine = device_.forward_engine();
    auto&& ring_engine = device_.ring_engine(engine);
    ring_forward(ring_engine, transport, kv);
    forward_ = device_.finish(engine);
    mine_.forward_exposed_seconds = count_statistics(transport);
    report_.forward_seconds = watch.lap();
  }

  void differentiate() {
    run_.activity.enter(Phase::read);
    Stopwatch watch(run_.comm);
    grad_out_ = read_queries(InputArray::grad_out);
    Kv kv = read_keys();
    report_.read_seconds += watch.lap();

    KvParcel<T, typename Device::Memory> sums(run_.input.kv(), run_.keys, run_.comm.rank(), device_.memory());
    Watched transport = device_.transport(Watched::kv), gradients = device_.transport(Watched::gradients);
    auto engine = device_.backward_engine(forward_, grad_out_);
    auto&& ring_engine = device_.ring_engine(engine);
    ring_backward(ring_engine, transport, gradients, kv, sums);
    gradients_ = device_.finish(engine, sums);
    gradients_.sinks =
        sink_gradient<T>({q_, forward_.out, forward_.lse, grad_out_}, run_.input.scoring().sinks);
    sum_over_ranks(run_.comm, std::span(gradients_.sinks));
    mine_.backward_exposed_seconds = count_statistics(transport) + count_statistics(gradients);
    report_.backward_seconds = watch.lap();
  }

  void check() {
    run_.activity.enter(Phase::check);
    Stopwatch watch(run_.comm);
    RankResults<T> results{run_.query_ranges, run_.key_ranges, &q_, &bias_, &forward_};
    results.kv_unit = device_.input_roundoff();
    if (run_.options.wants_gradients()) {
      results.grad_out = &grad_out_;
      results.gradients = &gradients_;
    }
    check_results(run_.comm, run_.input, results, mine_, run_.activity);
    report_.check_seconds = watch.lap();
  }

  void write(RunResults& results) {
    run_.activity.enter(Phase::write);
    Stopwatch watch(run_.comm);
    results.write<T>("out", forward_.out, run_.query_ranges);
    results.write<T>("lse", forward_.lse, run_.query_ranges);
    if (run_.options.wants_gradients()) {
      results.write<T>("dq", gradients_.q, run_.query_ranges);
      results.write<T>("dk", gradients_.k, run_.key_ranges);
      results.write<T>("dv", gradients_.v, run_.key_ranges);
      if (run_.input.bias().size() > 0) results.write<T>("dbias", gradients_.bias, run_.query_ranges);
      if (!gradients_.sinks.empty()) write_sinks(results);
    }
    report_.write_seconds = watch.lap();
    results.commit(to_json(report_, run_.options));
  }

  /// The sum over all ranks, which rank 0 writes.
  void write_sinks(RunResults& results) const {
    const Index heads = run_.comm.rank() == 0 ? std::ssize(gradients_.sinks) : 0;
    Tensor<T> sinks({1, 1, heads, 1});
    std::copy_n(gradients_.sinks.begin(), heads, sinks.data());
    results.write<T>("dsink", sinks, whole(heads));
  }

  void print(const std::optional<RunResults>& results) const {
    if (run_.comm.rank() != 0) return;
    std::fputs((run_.options.json ? to_json(report_, run_.options) : to_text(report_, run_.options)).c_str(),
               stdout);
    if (!report_.ok())
      std::fprintf(stderr, "error: the check failed%s\n", results ? "; nothing was written" : "");
    else if (results && !run_.options.json)
      std::printf("\nWrote %s to %s\n", results->names().c_str(), run_.options.out.c_str());
  }

  const RunContext& run_;
  Device device_;
  Tensor<T> q_, bias_, grad_out_;
  AttentionResult<T> forward_;
  Gradients<T> gradients_;
  RunReport report_;
  RankReport mine_;
};

}  // namespace ring_attention
