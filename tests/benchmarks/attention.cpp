// Times of one device: the ladder, the fast backward, and their peers, with Google Benchmark.
//
// A benchmark is named <what>/S:<tokens>/D:<dim>/T:<threads>, sgemm/T:<threads>, dgemm/T:<threads>, or copy/T:1 (of
// memory); double_... is the library in double, the rest is in float. Each result is compared with the fast forward's
// in float before it is timed. The counter `flop` is the floating-point operations of one
// call: 4 S^2 D a head forward, 10 S^2 D backward, of the pairs that the mask leaves; for `copy` it is bytes. bench.py
// runs this in groups, interleaved. `--isa avx2`, before other arguments, names the library's kernels.

#include <benchmark/benchmark.h>

#include <cmath>

#include "03_blockwise_attention/ladder/ladder.hpp"
#include "benchmarks/peers.hpp"
#include "ring_attention/core/eigen.hpp"
#include "ring_attention/core/random.hpp"
#include "ring_attention/cpu/backward.hpp"
#include "ring_attention/cpu/threads.hpp"

namespace ring_attention {
namespace {

constexpr Index gemm_size = 2048;

/// Four heads, one of 16k tokens and more.
struct Setting {
  Index seq, dim;
  int threads;
  [[nodiscard]] Shape shape() const { return {1, seq >= 16384 ? 1 : 4, seq, dim}; }
  [[nodiscard]] double pairs(bool causal) const {
    const auto s = static_cast<double>(seq);
    return static_cast<double>(shape().heads * dim) * (causal ? s * (s + 1) / 2 : s * s);
  }
};

/// The arrays of a setting in T and what the fast forward makes of them in float.
template <class T>
struct Arrays {
  explicit Arrays(const Setting& s) : q(s.shape()), k(s.shape()), v(s.shape()), grad_out(s.shape()) {
    std::uint64_t stream = 0;
    for (Tensor<T>* x : {&q, &k, &v, &grad_out}) fill_random(x->view(), {.stream = stream++});
    scoring.scale = 1 / std::sqrt(static_cast<double>(s.dim));
    causal = scoring;
    causal.mask = Mask::causal();
    const Tensor<float> q32 = converted<float>(q), k32 = converted<float>(k), v32 = converted<float>(v);
    want = fast_forward(q32, k32, v32, scoring, 2);
    want_causal = fast_forward(q32, k32, v32, causal, 2);
  }
  Tensor<T> q, k, v, grad_out;
  Scoring scoring, causal;
  AttentionResult<float> want, want_causal;
};

/// The instruction set of the library's engines: the best of this machine, or --isa.
Isa& isa() {
  static Isa chosen = best_isa();
  return chosen;
}

CpuOptions with_threads(int threads) { return {.threads = threads, .isa = isa()}; }

/// Those of the latest setting: the benchmarks of a group share them.
template <class T>
const Arrays<T>& arrays_of(const Setting& setting) {
  static std::unique_ptr<Arrays<T>> latest;
  if (latest == nullptr || latest->q.shape() != setting.shape()) {
    latest.reset();
    latest = std::make_unique<Arrays<T>>(setting);
  }
  return *latest;
}

template <class T>
bool close(View<const T> a, View<const float> b) {
  for (Index i = 0; i < a.size(); ++i)
    if (!(std::abs(a.data()[i] - static_cast<T>(b.data()[i])) <= T{1e-3F})) return false;
  return true;
}

/// Times `call`, which has left its result in `out`.
void time_calls(benchmark::State& state, double flop, const std::function<void()>& call,
                View<const float> out, View<const float> want) {
  call();
  if (!close<float>(out, want)) return state.SkipWithError("its result is wrong");
  for (auto _ : state) call();
  state.counters["flop"] = flop;
}

template <class T>
using Forward = AttentionResult<T>(View<const T> q, View<const T> k, View<const T> v, const Scoring& scoring,
                                   int threads);

template <class T>
AttentionResult<T> library_forward(View<const T> q, View<const T> k, View<const T> v, const Scoring& scoring,
                                   int threads) {
  return attention_forward<T>(q, k, v, scoring, with_threads(threads));
}

template <class T>
void forward(benchmark::State& state, Forward<T>* step, const Setting& setting, bool causal) {
  const Arrays<T>& arrays = arrays_of<T>(setting);
  const AttentionResult<float>& want = causal ? arrays.want_causal : arrays.want;
  AttentionResult<T> got{Tensor<T>(setting.shape()), {}};
  const auto call = [&] {
    got = step(arrays.q, arrays.k, arrays.v, causal ? arrays.causal : arrays.scoring, setting.threads);
  };
  call();
  if (!close<T>(got.out, want.out) || !close<T>(got.lse, want.lse))
    return state.SkipWithError("its result is wrong");
  for (auto _ : state) call();
  state.counters["flop"] = 4 * setting.pairs(causal);
}

/// What a call has besides q, k and v.
enum class With { nothing, causal, dropout, bias };

template <class T>
Scoring scoring_with(With what, const Arrays<T>& arrays) {
  Scoring scoring = what == With::causal ? arrays.causal : arrays.scoring;
  if (what == With::dropout) scoring.dropout = {.probability = 0.1, .seed = 1};
  return scoring;
}

/// A bias of every head for With::bias, else an empty view. Its constant changes the lse and not the result.
template <class T>
View<const T> bias_with(With what, const Setting& setting) {
  static std::unique_ptr<Tensor<T>> latest;
  if (what != With::bias) return {};
  const Shape shape{1, setting.shape().heads, setting.seq, setting.seq};
  if (latest == nullptr || latest->shape() != shape) {
    latest.reset();
    latest = std::make_unique<Tensor<T>>(shape, T{0.5F});
  }
  return *latest;
}

/// With a dropout the lse is compared, with a bias the result.
template <class T>
void forward_with(benchmark::State& state, const Setting& setting, With what) {
  const Arrays<T>& arrays = arrays_of<T>(setting);
  const Scoring scoring = scoring_with(what, arrays);
  const View<const T> bias = bias_with<T>(what, setting);
  AttentionResult<T> got;
  const auto call = [&] {
    got = attention_forward<T>(arrays.q, arrays.k, arrays.v, scoring, with_threads(setting.threads), bias);
  };
  call();
  if (!(what == With::dropout ? close<T>(got.lse, arrays.want.lse) : close<T>(got.out, arrays.want.out)))
    return state.SkipWithError("its result is wrong");
  for (auto _ : state) call();
  state.counters["flop"] = 4 * setting.pairs(false);
}

template <class T>
void backward(benchmark::State& state, const Setting& setting, With what) {
  const Arrays<T>& arrays = arrays_of<T>(setting);
  const AttentionResult<float>& attended = what == With::causal ? arrays.want_causal : arrays.want;
  const View<const T> bias = bias_with<T>(what, setting);
  const Tensor<T> out = converted<T>(attended.out), lse = converted<T>(attended.lse);
  Tensor<T> grad_k(setting.shape()), grad_v(setting.shape());
  for (auto _ : state) {
    CpuBackward<T> engine(scoring_with(what, arrays), with_threads(setting.threads));
    engine.begin({arrays.q, out, lse, arrays.grad_out, bias}, whole(setting.seq));
    engine.accumulate({arrays.k, arrays.v, whole(setting.seq)}, {grad_k, grad_v});
    benchmark::DoNotOptimize(engine.finish().data());
  }
  state.counters["flop"] = 10 * setting.pairs(what == With::causal);
}

/// What memory takes of a call with a bias, by itself: to read the bias, and for a backward to make an array of its size
/// and add to it. `flop` is that of the call.
void bias_memory(benchmark::State& state, const Setting& setting, bool backward) {
  const View<const float> bias = bias_with<float>(With::bias, setting);
  const Index parts = Index{64} * setting.threads, part = bias.size() / parts;
  for (auto _ : state) {
    Tensor<float> gradient(backward ? bias.shape() : Shape{});
    std::vector<float> sums(static_cast<std::size_t>(parts));
    for_each_task(parts, setting.threads, [&](Index task, int) {
      const Eigen::Map<const Eigen::ArrayXf> from(bias.data() + task * part, part);
      if (backward)
        Eigen::Map<Eigen::ArrayXf>(gradient.data() + task * part, part) += from;
      else
        sums[static_cast<std::size_t>(task)] = from.sum();
    });
    benchmark::DoNotOptimize(sums.data());
    benchmark::DoNotOptimize(gradient.data());
  }
  state.counters["flop"] = (backward ? 10 : 4) * setting.pairs(false);
}

void dense(benchmark::State& state, const Setting& setting, bool eigen) {
  const Arrays<float>& arrays = arrays_of<float>(setting);
  Tensor<float> out(setting.shape());
  const DenseProblem problem{arrays.q, arrays.k, arrays.v, static_cast<float>(arrays.scoring.scale), out};
  std::function<void()> call;
  if (eigen)
    call = [peer = std::make_shared<DenseEigen>(problem, setting.threads)] { (*peer)(); };
  else
    call = onednn_attention(problem, setting.threads);
  time_calls(state, 4 * setting.pairs(false), call, out, arrays.want.out);
}

template <class T>
void gemm(benchmark::State& state, int threads) {
  const auto call = openblas_gemm<T>(gemm_size, threads);
  for (auto _ : state) call();
  state.counters["flop"] = 2 * std::pow(static_cast<double>(gemm_size), 3);
}

/// What memory can do: its `flop` are bytes, read and written.
void copy(benchmark::State& state) {
  const Shape shape{1, 1, 1, 64 << 20};
  const Tensor<float> from(shape, 1);
  Tensor<float> to(shape);
  for (auto _ : state) {
    std::copy_n(from.data(), from.size(), to.data());
    benchmark::ClobberMemory();
  }
  state.counters["flop"] = 2 * static_cast<double>(from.bytes());
}

template <class Function, class... Arguments>
void add(const std::string& name, Function function, Arguments... arguments) {
  benchmark::RegisterBenchmark(name.c_str(), function, arguments...)
      ->UseRealTime()
      ->Unit(benchmark::kMillisecond);
}

void add_all() {
  add("copy/T:1", copy);
  const bool onednn = peer_versions().find("oneDNN") != std::string::npos;
  for (const int threads : {1, 2}) {
    const std::string t = "/T:" + std::to_string(threads);
    if (openblas_gemm<float>(1, 1)) {
      add("sgemm" + t, gemm<float>, threads);
      add("dgemm" + t, gemm<double>, threads);
    }
    for (const Index seq : {1024, 4096, 16384})
      for (const Index dim : {64, 128}) {
        const Setting setting{seq, dim, threads};
        const std::string where = "/S:" + std::to_string(seq) + "/D:" + std::to_string(dim) + t;
        for (std::size_t i = 0; i + 1 < ladder.size(); ++i)
          add(ladder[i].name + where, forward<float>, ladder[i].attend, setting, false);
        add("fast_forward" + where, forward<float>, library_forward<float>, setting, false);
        add("fast_forward_causal" + where, forward<float>, library_forward<float>, setting, true);
        add("fast_backward" + where, backward<float>, setting, With::nothing);
        add("fast_backward_causal" + where, backward<float>, setting, With::causal);
        if (seq <= 4096) {
          for (const auto& [what, suffix] : {std::pair{With::dropout, "_dropout"}, {With::bias, "_bias"}}) {
            add("fast_forward" + (suffix + where), forward_with<float>, setting, what);
            add("fast_backward" + (suffix + where), backward<float>, setting, what);
          }
          add("bias_memory_forward" + where, bias_memory, setting, false);
          add("bias_memory_backward" + where, bias_memory, setting, true);
          add("double_forward" + where, forward<double>, library_forward<double>, setting, false);
          add("double_backward" + where, backward<double>, setting, With::nothing);
          add("double_forward_causal" + where, forward<double>, library_forward<double>, setting, true);
          add("double_backward_causal" + where, backward<double>, setting, With::causal);
          add("double_forward_bias" + where, forward_with<double>, setting, With::bias);
          add("double_backward_bias" + where, backward<double>, setting, With::bias);
        }
        add("dense_eigen" + where, dense, setting, true);
        if (onednn) add("onednn" + where, dense, setting, false);
      }
  }
}

}  // namespace
}  // namespace ring_attention

int main(int argc, char** argv) {
  using namespace ring_attention;
  if (argc > 2 && std::string(argv[1]) == "--isa") {
    isa() = isa_named(argv[2]);
    argc -= 2;
    std::rotate(argv + 1, argv + 3, argv + argc + 2);
  }
  add_all();
  benchmark::AddCustomContext("peers", peer_versions());
  benchmark::AddCustomContext("isa", name_of(isa()));
  benchmark::AddCustomContext("machine_isa", name_of(best_isa()));
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
