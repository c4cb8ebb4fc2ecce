#include "program/run/command.hpp"

#include <sys/resource.h>

#include "cli/table.hpp"
#include "program/host_memory.hpp"
#include "program/progress_line.hpp"
#include "program/run/cuda.hpp"
#include "program/run/job.hpp"
#include "program/watched.hpp"
#include "ring_attention/cpu/backward.hpp"
#include "ring_attention/cpu/threads.hpp"
#include "ring_attention/ring/backward.hpp"
#include "ring_attention/ring/forward.hpp"
#include "ring_attention/ring/transports/odd_even.hpp"
#include "ring_attention/ring/transports/overlapped.hpp"
#include "ring_attention/ring/widening_engine.hpp"

namespace ring_attention {

Index process_peak_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
#ifdef __APPLE__
  return usage.ru_maxrss;
#else
  return usage.ru_maxrss * 1024;
#endif
}

namespace {

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

/// The cores of this machine, over transport Link.
template <class Kind, Transport Link>
class Cores {
  using Wire = typename Kind::Wire;

 public:
  using Value = typename Kind::Value;

  explicit Cores(const RunContext& place) : place_(place) {
    const RunOptions& options = place.options;
    if (!options.isa.empty() && options.isa != "auto") cpu_.isa = isa_named(options.isa);
    const int shared_out = usable_cores() / ranks_on_this_host(place.comm);
    cpu_.threads =
        Kind::is_fast ? std::max(1, options.threads > 0 ? static_cast<int>(options.threads) : shared_out) : 1;
  }

  void describe(RunReport& report, RankReport& mine) const {
    report.engine = Kind::is_fast ? "fast" : "readable";
    report.wire = Kind::is_narrow ? "bf16" : report.dtype;
    report.transport = place_.options.transport;
    if (Kind::is_fast) report.isa = name_of(cpu_.isa);
    mine.threads = cpu_.threads;
  }
  [[nodiscard]] double input_roundoff() const { return Kind::is_narrow ? Bf16::unit : 0; }

  /// What the shards take is known before anything is read or written: q and out (with gradients also dO
  /// and dQ), four KV shards in the type that travels (and two to widen them; and six of dK,dV).
  void require_memory() const {
    const Index q = place_.largest_q_shard(), kv = place_.largest_kv_shard();
    const Index elements =
        (place_.options.wants_gradients() ? 4 * q + 6 * kv : 2 * q) + (Kind::is_narrow ? 2 * kv : 0);
    const Index bytes =
        elements * static_cast<Index>(sizeof(Value)) + 4 * kv * static_cast<Index>(sizeof(Wire));
    require_host_memory(place_.comm, bytes);
  }

  void read_keys(const ReadKeys<Value>& read) {
    kv_.emplace(place_.input.kv(), place_.keys, place_.comm.rank());
    read_into(read, InputArray::k, kv_->k());
    read_into(read, InputArray::v, kv_->v());
  }

  AttentionResult<Value> forward(const Tensor<Value>& q, RankReport& mine) {
    Watched<Link> transport(place_.activity, [&] { return Link(place_.comm); });
    auto engine = make_engine<typename Kind::Forward>(place_.input.scoring(), place_.options.block, cpu_);
    engine.begin(q, place_.query_ranges);
    with_wire(engine, [&](auto& fed) { ring_forward(fed, transport, *kv_); });
    AttentionResult<Value> attended = engine.finish();
    mine.forward_exposed_seconds = count_statistics(mine, transport.statistics());
    kv_.reset();
    return attended;
  }

  Gradients<Value> backward(const Tensor<Value>& q, const AttentionResult<Value>& attended,
                            const Tensor<Value>& grad_out, RankReport& mine) {
    Watched<Link> kv_transport(place_.activity, [&] { return Link(place_.comm, 0); });
    Watched<Link> gradient_transport(
        place_.activity, [&] { return Link(place_.comm, 1); }, Watched<Link>::Channel::gradients);
    KvParcel<Value> sums(place_.input.kv(), place_.keys, place_.comm.rank());
    auto engine = make_engine<typename Kind::Backward>(place_.input.scoring(), place_.options.block, cpu_);
    engine.begin({q, attended.out, attended.lse, grad_out}, place_.query_ranges);
    with_wire(engine, [&](auto& fed) { ring_backward(fed, kv_transport, gradient_transport, *kv_, sums); });
    Gradients<Value> gradients{engine.finish(), converted<Value>(sums.k()), converted<Value>(sums.v())};
    mine.backward_exposed_seconds = count_statistics(mine, kv_transport.statistics()) +
                                    count_statistics(mine, gradient_transport.statistics());
    kv_.reset();
    return gradients;
  }

 private:
  static void read_into(const ReadKeys<Value>& read, InputArray array, View<Wire> shard) {
    if constexpr (Kind::is_narrow) {
      Tensor<Value> exact(shard.shape());
      read(array, exact);
      std::ranges::transform(exact.view().elements(), shard.data(), [](Value x) { return Wire(x); });
    } else {
      read(array, shard);
    }
  }

  /// Calls use(engine), or use(an engine that takes K,V as they travel).
  template <class Engine, class Use>
  void with_wire(Engine& engine, Use use) const {
    if constexpr (Kind::is_narrow) {
      WideningEngine<Engine, Wire> widening(engine, place_.input.kv().with_seq(place_.keys.max_tokens()));
      use(widening);
    } else {
      use(engine);
    }
  }

  const RunContext& place_;
  CpuOptions cpu_;
  std::optional<KvParcel<Wire>> kv_;
};

template <class Kind, Transport Link>
int run_over(const RunContext& place) {
  Cores<Kind, Link> cores(place);
  return Job(place, cores)();
}

template <class Kind>
int run(const RunContext& place) {
  return place.options.transport == "odd-even" ? run_over<Kind, OddEvenTransport>(place)
                                               : run_over<Kind, OverlappedTransport>(place);
}

}  // namespace

int run_command(const Communicator& comm, const RunOptions& options, Activity& activity, Watchdog& watchdog) {
  agree(comm, [&] { validate(options); });
  require_world_size(comm, options.ranks);
  watchdog.expect(std::chrono::duration<double>(options.timeout), comm.rank());
  const ProgressLine progress(activity, comm.size(), comm.rank() == 0 ? options.progress : "never");
  if (options.device == "cuda") require_gpus(comm, options);
  const RunInput input(comm, options);
  const bool narrow = options.wire == "bf16", readable = options.engine == "readable";
  agree(comm, [&] {
    if (!input.is_double()) return;
    if (options.device == "cuda")
      throw InputError(
          "--device cuda computes in float32 at most, and the arrays are float64: convert them, or leave it "
          "out");
    if (options.engine == "fast")
      throw InputError(
          "--engine fast computes in float32, and the arrays are float64: convert them, or leave it out");
    if (narrow)
      throw InputError(
          "--wire bf16 goes with float32, and the arrays are float64: convert them, or leave it out");
  });
  const RunContext place(comm, options, input, activity);
  if (options.device == "cuda") return run_on_gpus(place);
  const auto start = input.is_double() ? run<Readable<double>>
                     : readable        ? (narrow ? run<ReadableOverBf16> : run<Readable<float>>)
                                       : (narrow ? run<FastOverBf16> : run<Fast>);
  return start(place);
}

}  // namespace ring_attention
