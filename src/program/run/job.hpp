/// \file
/// One `ring-attention run`: read, forward, backward, check, write.
#pragma once

#include "cli/table.hpp"
#include "program/run/attention.hpp"
#include "program/run/check.hpp"
#include "program/run/estimate.hpp"
#include "program/run/files.hpp"
#include "program/stopwatch.hpp"
#include "ring_attention/core/allocation.hpp"
#include "ring_attention/core/text.hpp"

namespace ring_attention {

/// One run. Every function is collective.
template <class Input, class Wire = Input>
class RunJob {
  using T = SumOf<Input>;

 public:
  RunJob(const RunContext& context, Backend<Input, Wire>& backend, const Workload& work)
      : run_(context),
        backend_(backend),
        attention_(context, backend),
        files_(context.comm, context.options, context.input, context.activity, report_) {
    report_.backend = backend_.description;
    report_.ulysses = run_.grid().ulysses.size;
    report_.balance = run_.balance;
    report_.bias = run_.input.bias();
    report_.bias_bytes = work.bias_values() * static_cast<Index>(sizeof(T));
    report_.q_offset = run_.input.scoring().mask.offset;
    mine_.tokens = count(run_.query_ranges());
    mine_.threads = report_.backend.threads;
    if (!report_.backend.warning.empty()) files_.warn(report_.backend.warning);
  }

  int operator()() {
    backend_.require_memory();
    open();
    estimate();
    allocation::reset_peak();
    attend();
    if (run_.options.wants_gradients()) differentiate();
    mine_.tensor_bytes = allocation::peak();
    count_messages();
    if (run_.options.check) check();
    mine_.process_bytes = allocation::process_peak();
    report_.ranks = all_gather(run_.comm, mine_);
    if (files_.writes()) write();
    files_.print(run_.options.json ? to_json(report_, run_.options) : to_text(report_, run_.options));
    return report_.ok() ? 0 : 1;
  }

 private:
  /// Says how long a long run will take.
  void estimate() {
    const double seconds = expected_seconds(run_, *backend_.device, mine_.threads);
    report_.expected_seconds = seconds;
    run_.activity.expect(seconds);
    if (seconds > 0 && run_.comm.rank() == 0 && run_.options.progress != "never")
      std::fprintf(stderr, "about %s, at the rate of a small part\n",
                   seconds < 120 ? human_seconds(seconds).c_str() : format("%.0f min", seconds / 60).c_str());
  }

  void open() {
    files_.open();
    if (!run_.options.wants_gradients()) return;
    const std::size_t n = run_.input.dimensions();
    const Shape &q = run_.input.q(), &k = run_.input.kv(), v = run_.input.kv().values();
    files_.add("dq", q, array_extents(q, n));
    files_.add("dk", k, array_extents(k, n));
    files_.add("dv", v, array_extents(v, n));
    if (const auto& bias = run_.input.bias())
      files_.add("dbias", *bias, array_extents(*bias, run_.input.bias_dimensions()));
    const TermNumbers numbers = run_.input.scoring().zero_gradients();
    each_number(
        [&](const std::string& name, std::span<const double> of_heads) {
          const Index heads = std::ssize(of_heads);
          if (heads > 0) files_.add("d" + name, {1, 1, heads, 1}, {heads});
        },
        numbers);
  }

  /// The bias in the layout that is computed: it does not travel.
  Tensor<T> read_bias() {
    const std::optional<Shape>& bias = run_.input.bias();
    if (!bias) return {};
    if (!run_.shares_heads()) return files_.read(InputArray::bias, run_.query_ranges());
    const TokenRanges shard = run_.grid().shard(run_.shared.tokens.queries);
    const Interval heads = run_.heads_of(*bias);
    Tensor<T> own = run_.input.template read_heads<T>(InputArray::bias, shard, heads);
    const bool is_first = run_.grid().ulysses.index(run_.grid().rank) == 0;  // of those that read the same
    files_.require_finite(InputArray::bias, own.view(), shard, is_first || bias->heads > 1, heads.begin);
    return own;
  }

  void take_keys() {
    attention_.take_keys([&](InputArray array, View<T> shard) {
      run_.input.template read<T>(array, shard, run_.key_ranges());
      files_.require_finite(array, shard, run_.key_ranges());
    });
  }

  void attend() {
    run_.activity.enter(Phase::read);
    Stopwatch watch(run_.comm);
    q_ = files_.read(InputArray::q, run_.query_ranges());
    bias_ = read_bias();
    take_keys();
    report_.read_seconds += watch.lap();

    attention_.forward(q_, bias_);
    mine_.forward_exposed_seconds = attention_.statistics().exposed_seconds;
    report_.forward_seconds = watch.lap();
  }

  void differentiate() {
    run_.activity.enter(Phase::read);
    Stopwatch watch(run_.comm);
    grad_out_ = files_.read(InputArray::grad_out, run_.query_ranges());
    take_keys();
    report_.read_seconds += watch.lap();

    gradients_ = attention_.backward(grad_out_);
    mine_.backward_exposed_seconds = attention_.statistics().exposed_seconds - mine_.forward_exposed_seconds;
    report_.backward_seconds = watch.lap();
  }

  void count_messages() {
    const TransportStatistics all = attention_.statistics(), pieces = attention_.all_to_all();
    mine_.messages_sent = all.messages_sent;
    mine_.bytes_sent = all.bytes_sent;
    mine_.all_to_all_messages = pieces.messages_sent;
    mine_.all_to_all_bytes = pieces.bytes_sent;
  }

  void check() {
    run_.activity.enter(Phase::check);
    Stopwatch watch(run_.comm);
    if (run_.shares_heads() && run_.input.bias())
      bias_ = run_.input.template read<T>(InputArray::bias, run_.query_ranges());
    RankResults<T> results{run_.query_ranges(), run_.key_ranges(), &q_, &bias_, &attention_.result()};
    results.kv_unit = backend_.input_roundoff;
    if (run_.options.wants_gradients()) {
      results.grad_out = &grad_out_;
      results.gradients = &gradients_;
    }
    check_results(run_.comm, run_.input, results, mine_, run_.activity);
    report_.check_seconds = watch.lap();
  }

  void write() {
    run_.activity.enter(Phase::write);
    Stopwatch watch(run_.comm);
    files_.write(attention_.result(), run_.query_ranges());
    if (run_.options.wants_gradients()) {
      files_.write("dq", gradients_.q, run_.query_ranges());
      files_.write("dk", gradients_.k, run_.key_ranges());
      files_.write("dv", gradients_.v, run_.key_ranges());
      if (run_.input.bias()) files_.write("dbias", gradients_.bias, run_.query_ranges());
      write_numbers();
    }
    report_.write_seconds = watch.lap();
    files_.commit(to_json(report_, run_.options));
  }

  /// The sums over all ranks, which rank 0 writes.
  void write_numbers() {
    each_number(
        [&](const std::string& name, std::span<const double> sums) {
          if (sums.empty()) return;
          const Index heads = run_.comm.rank() == 0 ? std::ssize(sums) : 0;
          Tensor<T> array({1, 1, heads, 1});
          std::copy_n(sums.begin(), heads, array.data());
          files_.write("d" + name, array, whole(heads));
        },
        std::as_const(gradients_));
  }

  const RunContext& run_;
  Backend<Input, Wire>& backend_;
  RunAttention<Input, Wire> attention_;
  Tensor<T> q_, grad_out_;  // as this rank holds them
  Tensor<T> bias_;          // in the layout that is computed
  Gradients<T> gradients_;
  RunReport report_;
  RunFiles<T> files_;
  RankReport mine_;
};

/// One run; returns the exit code. Collective. \param make  the backend
template <class Input, class Wire>
int run_on(const RunContext& context, Backend<Input, Wire> (*make)(const BackendContext&)) {
  const Workload work = context.workload();
  Backend<Input, Wire> backend = make({context.comm, context.options, context.activity, work, context.trace});
  return RunJob<Input, Wire>(context, backend, work)();
}

}  // namespace ring_attention
