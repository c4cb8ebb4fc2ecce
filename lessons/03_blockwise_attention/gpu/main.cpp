// Lesson 03 on a GPU: blockwise_attention.cu is the idea; this program has the problem, the checks and the times.
#include "blockwise_attention.hpp"

#include "cli/gpu_timing.hpp"
#include "common/gpu.hpp"
#include "common/lesson.hpp"
#include "common/random_problem.hpp"
#include "ring_attention/cuda/device.hpp"
#include "ring_attention/cuda/engine.hpp"

using namespace ring_attention;

using lesson_03::dim, lesson_03::Choices;
using FloatsThere = cuda::DeviceTensor<float>;

/// q, k, v of a problem in device memory, and a place for the result.
struct OnDevice {
  OnDevice(const RandomProblem& p, cuda::StreamHandle stream)
      : q(cuda::uploaded<float>(p.queries<float>(whole(p.q.seq)), stream)),
        k(cuda::uploaded<float>(p.keys<float>(), stream)),
        v(cuda::uploaded<float>(p.values<float>(), stream)),
        out(p.q),
        lse(p.q.per_row()) {}
  FloatsThere q, k, v, out, lse;
};

RandomProblem problem_of(std::uint64_t seed, Index heads, Index seq, Index spike_every = 0) {
  const Shape shape{1, heads, seq, dim};
  return {shape, shape, {default_scale(dim), Mask::causal()}, seed, spike_every};
}

void by_hand(OnDevice& a, const RandomProblem& p, const Choices& choices, cuda::StreamHandle stream) {
  lesson_03::blockwise_attention(
      {a.q.data(), a.k.data(), a.v.data(), a.out.data(), a.lse.data(), static_cast<int>(p.q.heads),
       static_cast<int>(p.q.seq), static_cast<float>(p.scoring.scale)},
      choices, stream);
}

DeviceAttentionResult by_library(const OnDevice& a, const RandomProblem& p, const char* kernel,
                                 cuda::StreamHandle stream) {
  return attention_forward<float>(a.q, a.k, a.v, p.scoring, {.stream = stream, .kernel = kernel});
}

/// What both methods ask of device memory, counted from the loops. Caches serve a part of it.
void show_traffic(Lesson& lesson) {
  Table table({"S", "no tiles", "tiles of 64 queries", "operations a byte: no tiles", "tiles"});
  bool fewer = true;
  for (const Index seq : {1024, 8192, 65536}) {
    const Index pairs = seq * (seq + 1) / 2, e = sizeof(float);
    // no tiles: q and k for every score, then p and v for every term of o; tiles: k and v once for each tile
    const Index naive = e * pairs * 4 * dim,
                tiled = e * pairs * 2 * dim / lesson_03::tile_queries + e * 3 * seq * dim;
    const auto operations = static_cast<double>(4 * pairs * dim);
    table.row({std::to_string(seq), human_bytes(naive), human_bytes(tiled),
               format("%.2f", operations / static_cast<double>(naive)),
               format("%.1f", operations / static_cast<double>(tiled))});
    fewer = naive > 100 * tiled;  // of the longest
  }
  lesson.print("traffic", table);
  lesson.check("tiles ask for less than a hundredth of it", fewer);
}

void check_agreement(Lesson& lesson, const RandomProblem& p, const Choices& choices,
                     cuda::StreamHandle stream) {
  OnDevice a(p, stream);
  by_hand(a, p, choices, stream);
  const Reference want = p.reference<float>(whole(p.q.seq));
  const Tolerance tolerance = p.tolerance<float>(want);
  const Tensor<float> out = cuda::downloaded(a.out, stream), lse = cuda::downloaded(a.lse, stream);
  lesson.check("out agrees with the dense reference in double", compare(out, want.out, tolerance));
  lesson.check("lse agrees with the dense reference in double", compare(lse, want.lse, tolerance));
  const DeviceAttentionResult library = by_library(a, p, "tiled", stream);
  lesson.check("the library's kernel `tiled` agrees, too",
               compare(cuda::downloaded(library.out, stream), want.out, tolerance));
}

/// Of one call of the library's engine, which adds the same keys again each time.
double seconds_of(const OnDevice& a, const RandomProblem& p, const char* kernel, cuda::StreamHandle stream) {
  CudaEngine<float> engine(p.scoring, {.stream = stream, .kernel = kernel});
  engine.begin(a.q, whole(p.q.seq));
  return cuda::time_on(stream, 5, [&] { engine.accumulate({a.k, a.v, whole(p.q.seq)}); });
}

void show_times(Lesson& lesson, const RandomProblem& p, cuda::StreamHandle stream) {
  OnDevice a(p, stream);
  const std::vector<std::pair<const char*, double>> times{
      {"no tiles (the library's `naive`)", seconds_of(a, p, "naive", stream)},
      {"tiles, this lesson", cuda::time_on(stream, 5, [&] { by_hand(a, p, {}, stream); })},
      {"tiles, the library's `tiled`", seconds_of(a, p, "tiled", stream)}};
  Table table(
      {"S = " + std::to_string(p.q.seq) + ", " + std::to_string(p.q.heads) + " heads, median of 5, this run",
       "time", "TFLOP/s"});
  const double operations = 2.0 * static_cast<double>(p.q.heads * p.q.seq * (p.q.seq + 1) * dim);
  for (const auto& [name, time] : times)
    table.row({name, human_seconds(time), format("%.2f", operations / time / 1e12)});
  lesson.print("times", table);
}

int blockwise_attention_cuda_lesson(int argc, char** argv) {
  Lesson lesson(
      "03", "blockwise_attention_cuda",
      "The tiles of lesson 03 by a block of threads: K and V in shared memory, (o, m, l) in registers.");
  Index seq = 500, time_seq = gpu::emulated() ? 0 : 4096;
  lesson.options().option("--seq", seq, "Tokens S of the check; need not be a multiple of a tile",
                          {1, 1 << 14});
  lesson.options().option("--time-seq", time_seq, "Tokens of the problem that is timed; 0: none",
                          {0, 1 << 17});
  lesson.offer_mutants({{"no-barrier", "threads read the tile before all of it is there"},
                        {"o-stays", "l is moved when the maximum grows, o is not"}});
  lesson.needs_gpu(cuda::why_no_device());
  if (!lesson.parse(argc, argv)) return 0;
  const Choices choices{.barrier = !lesson.mutant("no-barrier"), .move_o = !lesson.mutant("o-stays")};
  const cuda::Stream stream;
  gpu::describe_device(lesson);

  lesson.heading("The failure: what is asked of device memory, a head");
  show_traffic(lesson);
  lesson.heading("The agreement");
  check_agreement(lesson, problem_of(lesson.seed(), 2, seq, 16), choices, stream.handle());
  if (time_seq > 0) {
    lesson.heading("The time");
    show_times(lesson, problem_of(lesson.seed(), 8, time_seq), stream.handle());
  }
  return lesson.finish("exact attention, tiles in shared memory, (o, m, l) in registers");
}

int main(int argc, char** argv) {
  return serial_main([&] { return blockwise_attention_cuda_lesson(argc, argv); });
}
