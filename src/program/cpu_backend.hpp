/// \file
/// `CpuBackend`: the cores of this machine, and MPI.
#pragma once

#include <algorithm>
#include <concepts>
#include <memory>
#include <type_traits>
#include <utility>
#include <variant>

#include "cli/table.hpp"
#include "program/backend.hpp"
#include "ring_attention/cpu/backward.hpp"
#include "ring_attention/cpu/threads.hpp"
#include "ring_attention/parallel/mpi_all_to_all.hpp"
#include "ring_attention/ring/transports/odd_even.hpp"
#include "ring_attention/ring/transports/overlapped.hpp"
#include "ring_attention/ring/widening_engine.hpp"

namespace ring_attention {

/// The instruction set and the threads of a rank that the flags ask for. Collective.
[[nodiscard]] inline CpuOptions cpu_options(const Communicator& comm, const CpuFlags& options) {
  CpuOptions cpu;
  if (options.isa != "auto") cpu.isa = isa_named(options.isa);
  const int shared_out = usable_cores() / ranks_on_this_host(comm);
  cpu.threads = std::max(1, options.threads > 0 ? static_cast<int>(options.threads) : shared_out);
  return cpu;
}

/// \throws AgreedError when one rank cannot have `bytes` for its shards. Collective.
/// \param of_which  behind the bytes, or empty
inline void require_host_memory(const Communicator& comm, Index bytes, const std::string& of_which = "") {
  agree(comm, [&] {
    if (!allocation::available(bytes))
      throw InputError("rank " + std::to_string(comm.rank()) + " cannot have " + human_bytes(bytes) +
                       " of memory for its shards" + of_which +
                       ": use more ranks on more hosts, or a shorter sequence");
  });
}

/// The fast engine or the readable one, forward or backward: chosen when the program runs, so that the code above an
/// engine is compiled once.
template <class Fast, class Readable>
class EitherEngine {
 public:
  using value_type = typename Fast::value_type;

  EitherEngine(bool is_fast, const Scoring& scoring, Index block, const CpuOptions& options)
      : engine_(is_fast ? Either(make_engine<Fast>(scoring, block, options))
                        : Either(make_engine<Readable>(scoring, block, options))) {}

  void begin(const auto&... arguments) {
    std::visit([&](auto& engine) { engine.begin(arguments...); }, engine_);
  }
  void accumulate(const KeyValue<value_type>& kv, const Progress& progress) {
    std::visit([&](auto& engine) { engine.accumulate(kv, progress); }, engine_);
  }
  void accumulate(const KeyValue<value_type>& kv, const KeyValueGradient<value_type>& gradient,
                  const Progress& progress) {
    std::visit([&](auto& engine) { engine.accumulate(kv, gradient, progress); }, engine_);
  }
  [[nodiscard]] auto finish() {
    return std::visit([](auto& engine) { return engine.finish(); }, engine_);
  }
  [[nodiscard]] auto bias_gradient() {
    return std::visit([](auto& engine) { return engine.bias_gradient(); }, engine_);
  }

 private:
  using Either = std::variant<Fast, Readable>;
  Either engine_;
};

template <class T>
using CpuForward = EitherEngine<CpuEngine<T>, BlockwiseEngine<T>>;
template <class T>
using CpuGradient = EitherEngine<CpuBackward<T>, BlockwiseBackward<T>>;

[[nodiscard]] inline bool is_fast(const DeviceOptions& options) { return options.engine != "readable"; }

/// What computes, and in what type K,V travel. A model of Backend.
template <class T, class ElementType = T>
class CpuBackend {
 public:
  using Value = T;
  using Input = Value;
  using Element = ElementType;
  using Memory = HostMemory;

  explicit CpuBackend(const BackendContext& context) : context_(context) {
    if (fast_) cpu_ = cpu_options(context.comm, context.options);
  }

  [[nodiscard]] BackendDescription description() const {
    return {.engine = fast_ ? "fast" : "readable",
            .isa = fast_ ? name_of(cpu_.isa) : "",
            .wire = is_narrow                         ? "bf16"
                    : sizeof(Value) == sizeof(double) ? "float64"
                                                      : "float32",
            .transport = is_odd_even() ? "odd-even" : "overlapped",
            .warning = {},
            .threads = cpu_.threads};
  }
  [[nodiscard]] double input_roundoff() const { return is_narrow ? Bf16::unit : 0; }

  /// q, bias and out (with gradients also dO, dQ and dbias), four KV shards in the type that travels (and two to widen
  /// them; and six of dK,dV); and what --check takes for dbias.
  void require_memory() const {
    const Workload& work = context_.workload;
    const Index q = work.q.size(), kv = work.kv.size();
    const Index values = (work.gradients ? 4 * q + 6 * kv : 2 * q) + (is_narrow ? 2 * kv : 0) + work.besides;
    const Index bias = work.bias_values() * static_cast<Index>(sizeof(Value)) + work.check_bytes;
    const Index bytes =
        values * static_cast<Index>(sizeof(Value)) + 4 * kv * static_cast<Index>(sizeof(Element)) + bias;
    require_host_memory(context_.comm, bytes,
                        bias > 0 ? " (" + human_bytes(bias) + " of it for the bias)" : "");
  }

  [[nodiscard]] HostMemory memory() const { return {}; }
  [[nodiscard]] Watched transport(Watched::Channel channel) const {
    const auto odd_even = [&] { return OddEvenTransport(context_.ring, channel); };
    const auto overlapped = [&] { return OverlappedTransport(context_.ring, channel); };
    return is_odd_even() ? Watched(context_.activity, odd_even, channel)
                         : Watched(context_.activity, overlapped, channel);
  }

  [[nodiscard]] WatchedAllToAll all_to_all(const Communicator& line) const {
    return {context_.activity, Line(std::make_shared<MpiAllToAll>(line))};
  }

  void fill(View<Element> shard, const std::invocable<View<Value>> auto& write) const {
    if constexpr (is_narrow) {
      Tensor<Value> exact(shard.shape());
      write(exact.view());
      fill(shard, exact);
    } else {
      write(shard);
    }
  }
  void fill(View<Element> shard, View<const Value> array) const {
    std::ranges::transform(array.elements(), shard.data(), [](Value x) { return Element(x); });
  }
  [[nodiscard]] View<const Value> there(View<const Value> array) const { return array; }
  [[nodiscard]] Tensor<Value> here(Tensor<Value>&& array) const { return std::move(array); }
  [[nodiscard]] Tensor<Value> here(View<const Value> array) const { return converted<Value>(array); }

  void set_queries(View<const Value> q, const TokenRanges& ranges, View<const Value> bias = {}) {
    q_ = q;
    bias_ = bias;
    query_ranges_ = ranges;
  }
  [[nodiscard]] CpuForward<Value> forward_engine() const {
    CpuForward<Value> engine(fast_, context_.workload.scoring, context_.options.block, cpu_);
    engine.begin(q_, query_ranges_, bias_);
    return engine;
  }
  [[nodiscard]] CpuGradient<Value> backward_engine(const AttentionResult<Value>& result,
                                                   View<const Value> grad_out) const {
    CpuGradient<Value> engine(fast_, context_.workload.scoring, context_.options.block, cpu_);
    engine.begin(ForwardResult<Value>{q_, result.out, result.lse, grad_out, bias_}, query_ranges_);
    return engine;
  }
  template <class Engine>
  [[nodiscard]] decltype(auto) ring_engine(Engine& engine) const {
    if constexpr (is_narrow)
      return WideningEngine<Engine, Element>(engine, context_.workload.kv);
    else
      return (engine);
  }

  void synchronize() const {}

 private:
  static constexpr bool is_narrow = !std::is_same_v<Element, Value>;  // do K,V travel in another type?

  [[nodiscard]] bool is_odd_even() const { return context_.options.transport == "odd-even"; }

  BackendContext context_;
  bool fast_ = is_fast(context_.options);
  CpuOptions cpu_;
  View<const Value> q_, bias_;
  TokenRanges query_ranges_;
};

}  // namespace ring_attention
