#include "ring_attention/app/run_command.hpp"

#include <sys/resource.h>

#include <chrono>
#include <cstdio>

#include "ring_attention/app/progress_line.hpp"
#include "ring_attention/app/run_check.hpp"
#include "ring_attention/app/run_report.hpp"
#include "ring_attention/app/run_results.hpp"
#include "ring_attention/app/table.hpp"
#include "ring_attention/cpu/backward.hpp"
#include "ring_attention/cpu/threads.hpp"
#include "ring_attention/ring/backward.hpp"
#include "ring_attention/ring/forward.hpp"
#include "ring_attention/ring/odd_even_ring.hpp"
#include "ring_attention/ring/overlapped_ring.hpp"
#include "ring_attention/ring/wire.hpp"

namespace ring_attention {
namespace {

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

Index process_peak_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
#ifdef __APPLE__
  return usage.ru_maxrss;
#else
  return usage.ru_maxrss * 1024;
#endif
}

/// What computes, and in what type K,V travel.
template <class ForwardType, class BackwardType, class WireType = typename ForwardType::value_type>
struct Arithmetic {
  using Value = typename ForwardType::value_type;
  using Forward = ForwardType;
  using Backward = BackwardType;
  using Wire = WireType;
  static constexpr bool is_fast = std::is_same_v<Forward, CpuEngine>;
  static constexpr bool is_narrow = !std::is_same_v<Wire, Value>;  ///< do K,V travel in another type?
};
template <class T>
using Readable = Arithmetic<BlockwiseEngine<T>, BlockwiseBackward<T>>;
using ReadableOverBf16 = Arithmetic<BlockwiseEngine<float>, BlockwiseBackward<float>, Bf16>;
using Fast = Arithmetic<CpuEngine, CpuBackward>;
using FastOverBf16 = Arithmetic<CpuEngine, CpuBackward, Bf16>;

/// One `ring-attention run` over transport Link: read, attend, differentiate, check, write.
/// Every function is collective.
template <class Kind, Transport Link>
class Job {
  using T = typename Kind::Value;
  using Wire = typename Kind::Wire;

 public:
  Job(const Communicator& comm, const RunOptions& options, const RunInput& input, Activity& activity)
      : comm_(comm),
        options_(options),
        input_(input),
        activity_(activity),
        queries_(layout_named(options.placement), input.q().seq, comm.size()),
        keys_(layout_named(options.placement), input.kv().seq, comm.size()),
        query_runs_(queries_.runs(comm.rank())),
        key_runs_(keys_.runs(comm.rank())) {
    report_.q = input.q();
    report_.kv = input.kv();
    report_.dtype = sizeof(T) == sizeof(double) ? "float64" : "float32";
    report_.scale = input.scoring().scale;
    report_.engine = Kind::is_fast ? "fast" : "readable";
    report_.wire = Kind::is_narrow ? "bf16" : report_.dtype;
    if (!options.isa.empty() && options.isa != "auto") cpu_.isa = isa_named(options.isa);
    const int shared_out = usable_cores() / ranks_on_this_host(comm);
    cpu_.threads =
        Kind::is_fast ? std::max(1, options.threads > 0 ? static_cast<int>(options.threads) : shared_out) : 1;
    if (Kind::is_fast) report_.isa = name_of(cpu_.isa);
    mine_.threads = cpu_.threads;
    report_.q_offset = input.scoring().mask.offset;
    mine_.tokens = count(query_runs_);
  }

  int operator()() {
    require_memory();
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
  /// What the shards take is known before anything is read or written: q and out (with gradients also dO
  /// and dQ), four KV shards in the type that travels (and two to widen them; and six of dK,dV). All ranks end together when one of them cannot have it.
  void require_memory() const {
    const Index q = input_.q().with_seq(queries_.max_tokens()).size();
    const Index kv = input_.kv().with_seq(keys_.max_tokens()).size();
    const Index elements =
        (options_.wants_gradients() ? 4 * q + 6 * kv : 2 * q) + (Kind::is_narrow ? 2 * kv : 0);
    const Index bytes = elements * static_cast<Index>(sizeof(T)) + 4 * kv * static_cast<Index>(sizeof(Wire));
    agree(comm_, [&] {
      if (!allocation::available(bytes))
        throw InputError("rank " + std::to_string(comm_.rank()) + " cannot have " + human_bytes(bytes) +
                         " of memory for its shards: use more ranks on more hosts, or a shorter sequence");
    });
  }

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
  KvParcel<Wire> read_kv() {
    activity_.enter(Phase::read);
    KvParcel<Wire> kv(input_.kv(), keys_, comm_.rank());
    read_keys(InputArray::k, kv.k());
    read_keys(InputArray::v, kv.v());
    return kv;
  }

  void read_keys(InputArray array, View<Wire> shard) {
    if constexpr (Kind::is_narrow) {
      const Tensor<T> exact = input_.template read<T>(array, key_runs_);
      require_finite(array, exact.view(), key_runs_);
      std::ranges::transform(exact.view().elements(), shard.data(), [](T x) { return Wire(x); });
    } else {
      input_.template read<T>(array, shard, key_runs_);
      require_finite(array, shard, key_runs_);
    }
  }

  /// Calls use(engine), or use(an engine that takes K,V as they travel).
  template <class Engine, class Use>
  void with_wire(Engine& engine, Use use) const {
    if constexpr (Kind::is_narrow) {
      WideningEngine<Engine, Wire> widening(engine, input_.kv().with_seq(keys_.max_tokens()));
      use(widening);
    } else {
      use(engine);
    }
  }

  void require_finite(InputArray array, View<const T> shard, const Runs& runs) {
    const std::string line = input_.template non_finite<T>(comm_, array, shard, runs);
    if (line.empty() || std::ranges::count(report_.warnings, line) > 0) return;
    report_.warnings.push_back(line);
    if (options_.check) throw AgreedError(line + ": --check needs finite arrays");
    if (comm_.rank() == 0) std::fprintf(stderr, "warning: %s\n", line.c_str());
  }

  void attend() {
    activity_.enter(Phase::read);
    Stopwatch watch(comm_);
    q_ = input_.template read<T>(InputArray::q, query_runs_);
    require_finite(InputArray::q, q_.view(), query_runs_);
    KvParcel<Wire> kv = read_kv();
    report_.read_seconds += watch.lap();

    Link link(comm_);
    auto engine = make_engine<typename Kind::Forward>(input_.scoring(), options_.block, cpu_);
    engine.begin(q_, query_runs_);
    with_wire(engine, [&](auto& fed) { ring_forward(fed, link, kv, activity_); });
    forward_ = engine.finish();
    report_.forward_seconds = watch.lap();
    mine_.forward_exposed_seconds = count_statistics(link);
  }

  void differentiate() {
    activity_.enter(Phase::read);
    Stopwatch watch(comm_);
    grad_out_ = input_.template read<T>(InputArray::grad_out, query_runs_);
    require_finite(InputArray::grad_out, grad_out_.view(), query_runs_);
    KvParcel<Wire> kv = read_kv();
    report_.read_seconds += watch.lap();

    Link kv_link(comm_, 0), gradient_link(comm_, 1);
    KvParcel<T> kv_gradients(input_.kv(), keys_, comm_.rank());
    auto engine = make_engine<typename Kind::Backward>(input_.scoring(), options_.block, cpu_);
    engine.begin({q_, forward_.out, forward_.lse, grad_out_}, query_runs_);
    with_wire(engine,
              [&](auto& fed) { ring_backward(fed, kv_link, gradient_link, kv, kv_gradients, activity_); });
    gradients_ = {engine.finish(), converted<T>(kv_gradients.k()), converted<T>(kv_gradients.v())};
    report_.backward_seconds = watch.lap();
    mine_.backward_exposed_seconds = count_statistics(kv_link) + count_statistics(gradient_link);
  }

  /// Adds what a link did to this rank's report; returns its exposed seconds.
  double count_statistics(const Link& link) {
    mine_.messages_sent += link.statistics().messages_sent;
    mine_.bytes_sent += link.statistics().bytes_sent;
    return link.statistics().exposed_seconds;
  }

  void check() {
    activity_.enter(Phase::check);
    Stopwatch watch(comm_);
    RankResults<T> results{query_runs_, key_runs_, &q_, &forward_};
    results.kv_unit = Kind::is_narrow ? Bf16::unit : 0;
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
    results.write<T>("out", forward_.out, query_runs_);
    results.write<T>("lse", forward_.lse, query_runs_);
    if (options_.wants_gradients()) {
      results.write<T>("dq", gradients_.q, query_runs_);
      results.write<T>("dk", gradients_.k, key_runs_);
      results.write<T>("dv", gradients_.v, key_runs_);
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
  CpuOptions cpu_;
  Placement queries_, keys_;
  Runs query_runs_, key_runs_;  // where this rank's tokens stand
  Tensor<T> q_, grad_out_;
  Attended<T> forward_;
  Gradients<T> gradients_;
  RunReport report_;
  RankReport mine_;
};

template <class Kind>
int run(const Communicator& comm, const RunOptions& options, const RunInput& input, Activity& activity) {
  return options.transport == "odd-even" ? Job<Kind, OddEvenRing>(comm, options, input, activity)()
                                         : Job<Kind, OverlappedRing>(comm, options, input, activity)();
}

}  // namespace

int run_command(const Communicator& comm, const RunOptions& options, Activity& activity, Watchdog& watchdog) {
  agree(comm, [&] { validate(options); });
  require_world_size(comm, options.ranks);
  watchdog.expect(std::chrono::duration<double>(options.timeout), comm.rank());
  const ProgressLine progress(activity, comm.size(), comm.rank() == 0 ? options.progress : "never");
  const RunInput input(comm, options);
  const bool narrow = options.wire == "bf16", readable = options.engine == "readable";
  agree(comm, [&] {
    if (!input.is_double()) return;
    if (options.engine == "fast")
      throw InputError(
          "--engine fast computes in float32, and the arrays are float64: convert them, or leave it out");
    if (narrow)
      throw InputError(
          "--wire bf16 goes with float32, and the arrays are float64: convert them, or leave it out");
  });
  const auto start = input.is_double() ? run<Readable<double>>
                     : readable        ? (narrow ? run<ReadableOverBf16> : run<Readable<float>>)
                                       : (narrow ? run<FastOverBf16> : run<Fast>);
  return start(comm, options, input, activity);
}

}  // namespace ring_attention
