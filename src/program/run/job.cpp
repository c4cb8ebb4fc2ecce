#include "program/run/job.hpp"

#include <cstdio>

#include "program/run/check.hpp"
#include "program/run/report.hpp"
#include "program/run/results.hpp"

namespace ring_attention {

namespace {

/// One run. Every function is collective.
template <class T>
class Job {
 public:
  Job(const RunContext& context, AnyAttention<T>& attention) : run_(context), attention_(attention) {
    report_.backend = attention_.description();
    report_.ulysses = run_.place.ulysses.size;
    report_.q = run_.input.q();
    report_.kv = run_.input.kv();
    report_.bias = run_.input.bias();
    report_.bias_bytes = attention_.work().bias_values() * static_cast<Index>(sizeof(T));
    report_.dtype = sizeof(T) == sizeof(double) ? "float64" : "float32";
    report_.scale = run_.input.scoring().scale;
    report_.q_offset = run_.input.scoring().mask.offset;
    mine_.tokens = count(run_.query_ranges);
    mine_.threads = report_.backend.threads;
    if (!report_.backend.warning.empty()) warn(report_.backend.warning);
  }

  int operator()() {
    attention_.require_memory();
    std::optional<RunResults> results;
    if (!run_.options.out.empty()) open(results.emplace(run_.comm, run_.options.out));
    allocation::reset_peak();
    attend();
    if (run_.options.wants_gradients()) differentiate();
    mine_.tensor_bytes = allocation::peak();
    count_messages();
    if (run_.options.check) check();
    mine_.process_bytes = allocation::process_peak();
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

  void require_finite(InputArray array, View<const T> shard, const TokenRanges& ranges,
                      Index first_head = 0) {
    run_.activity.beat();  // an array has been read
    const std::string line = run_.input.template non_finite<T>(run_.comm, array, shard, ranges, first_head);
    if (line.empty() || std::ranges::count(report_.warnings, line) > 0) return;
    if (run_.options.check) throw AgreedError(line + ": --check needs finite arrays");
    warn(line);
  }

  /// The tokens that this rank holds.
  Tensor<T> read_held(InputArray array, const TokenRanges& ranges) {
    Tensor<T> shard = run_.input.template read<T>(array, ranges);
    require_finite(array, shard.view(), ranges);
    return shard;
  }

  [[nodiscard]] bool has_bias() const { return run_.input.bias().size() > 0; }

  /// The bias in the layout that is computed: it does not travel.
  Tensor<T> read_bias() {
    if (!run_.shares_heads()) return read_held(InputArray::bias, run_.query_ranges);
    const TokenRanges shard = run_.place.shard(run_.queries);
    const Interval heads = run_.bias_heads();
    Tensor<T> bias = run_.input.template read_bias<T>(shard, heads);
    if (run_.input.bias().heads == 1 && run_.place.ulysses.index(run_.place.rank) >
                                            0)  // the first of the ranks that read it counts its elements
      require_finite(InputArray::bias, {nullptr, bias.shape().with_seq(0)}, {});
    else
      require_finite(InputArray::bias, bias.view(), shard, heads.begin);
    return bias;
  }

  void take_keys() {
    attention_.take_keys([&](InputArray array, View<T> shard) {
      run_.input.template read<T>(array, shard, run_.key_ranges);
      require_finite(array, shard, run_.key_ranges);
    });
  }

  void attend() {
    run_.activity.enter(Phase::read);
    Stopwatch watch(run_.comm);
    q_ = read_held(InputArray::q, run_.query_ranges);
    if (has_bias()) bias_ = read_bias();
    take_keys();
    report_.read_seconds += watch.lap();

    attention_.forward(q_, bias_);
    mine_.forward_exposed_seconds = attention_.moved().exposed_seconds;
    report_.forward_seconds = watch.lap();
  }

  void differentiate() {
    run_.activity.enter(Phase::read);
    Stopwatch watch(run_.comm);
    grad_out_ = read_held(InputArray::grad_out, run_.query_ranges);
    take_keys();
    report_.read_seconds += watch.lap();

    gradients_ = attention_.backward(grad_out_);
    mine_.backward_exposed_seconds = attention_.moved().exposed_seconds - mine_.forward_exposed_seconds;
    report_.backward_seconds = watch.lap();
  }

  void count_messages() {
    const TransportStatistics all = attention_.moved(), pieces = attention_.all_to_all();
    mine_.messages_sent = all.messages_sent;
    mine_.bytes_sent = all.bytes_sent;
    mine_.all_to_all_messages = pieces.messages_sent;
    mine_.all_to_all_bytes = pieces.bytes_sent;
  }

  void check() {
    run_.activity.enter(Phase::check);
    Stopwatch watch(run_.comm);
    if (run_.shares_heads() && has_bias())
      bias_ = run_.input.template read<T>(InputArray::bias, run_.query_ranges);
    RankResults<T> results{run_.query_ranges, run_.key_ranges, &q_, &bias_, &attention_.result()};
    results.kv_unit = attention_.input_roundoff();
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
    results.write<T>("out", attention_.result().out, run_.query_ranges);
    results.write<T>("lse", attention_.result().lse, run_.query_ranges);
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
  AnyAttention<T>& attention_;
  Tensor<T> q_, grad_out_, bias_;  // bias_ in the layout that is computed; the others as this rank holds them
  Gradients<T> gradients_;
  RunReport report_;
  RankReport mine_;
};

}  // namespace

template <class T>
int run_job(const RunContext& context, std::unique_ptr<AnyAttention<T>> attention) {
  return Job<T>(context, *attention)();
}

template int run_job(const RunContext&, std::unique_ptr<AnyAttention<float>>);
template int run_job(const RunContext&, std::unique_ptr<AnyAttention<double>>);

}  // namespace ring_attention
