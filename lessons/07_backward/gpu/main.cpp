// Lesson 07 on a GPU: backward.cu is the idea; this program has the checks and the times.
#include "cli/gpu_timing.hpp"
#include "common/gpu.hpp"
#include "common/lesson.hpp"
#include "problem.hpp"
#include "ring_attention/cuda/device.hpp"

using namespace ring_attention;
using namespace ring_attention::lesson_07;

/// What each plausible mistake does to each gradient: some checks cannot see it.
void show_mistakes(Lesson& lesson, const Forward& f, const ReferenceGradients& want) {
  Table table({"mistake", "dQ off by", "dK off by", "dV off by"});
  for (const auto& [name, mistakes] :
       {std::pair("none", Mistakes{}), std::pair("no scale in dK", Mistakes{.missing_scale = true}),
        std::pair("no delta", Mistakes{.no_delta = true}),
        std::pair("no barrier before dQ", Mistakes{.no_barrier = true})}) {
    const Gradients<float> got = by_hand(f, mistakes);
    const auto off = [&](const Tensor<float>& array, const Tensor<double>& wanted) {
      const Comparison off_by = compare(cuda::downloaded(array, f.stream), wanted, {});
      // NaN stays NaN
      return human_error(std::isfinite(off_by.got) ? off_by.relative_error : std::abs(off_by.got));
    };
    table.row({name, off(got.q, want.q), off(got.k, want.k), off(got.v, want.v)});
  }
  lesson.print("mistakes", table);
}

void check_agreement(Lesson& lesson, const std::string& whose, const Forward& f, const Gradients<float>& got,
                     const ReferenceGradients& want) {
  const auto agree = [&](const char* name, const Tensor<float>& gradient, const Tensor<double>& reference,
                         double magnitude) {
    lesson.check(whose + name + " agrees with the dense reference in double",
                 compare(cuda::downloaded(gradient, f.stream), reference,
                         gradient_tolerance<float>(f.p.q.seq, want.max_abs_score, magnitude)));
  };
  agree("dQ", got.q, want.q, want.magnitude_q);
  agree("dK", got.k, want.k, want.magnitude_k);
  agree("dV", got.v, want.v, want.magnitude_v);
}

void show_times(Lesson& lesson, const Forward& f) {
  Gradients<float> d = zeros(f.p.q);
  FloatsThere delta(f.p.q.per_row());
  Table table({"S = " + std::to_string(f.p.q.seq) + ", " + std::to_string(f.p.q.heads) +
                   " heads, median of 5, this run",
               "time", "TFLOP/s"});
  const double operations = 5.0 * static_cast<double>(f.p.q.heads * f.p.q.seq * (f.p.q.seq + 1) * dim);
  const auto row = [&](const char* name, double time) {
    table.row({name, human_seconds(time), format("%.2f", operations / time / 1e12)});
  };
  row("this lesson, dQ by atomics", cuda::time_on(f.stream, 5, [&] { by_hand(f, delta, d, {}); }));
  for (const char* kernel : {"tiled", "tiled-atomics"}) {
    CudaBackward<float> engine(f.p.scoring, {.stream = f.stream, .kernel = kernel});
    engine.begin({f.q, f.result.out, f.result.lse, f.grad_out}, whole(f.p.q.seq));
    row(kernel,
        cuda::time_on(f.stream, 5, [&] { engine.accumulate({f.k, f.v, whole(f.p.q.seq)}, {d.k, d.v}); }));
  }
  lesson.print("times", table);
}

int backward_cuda_lesson(int argc, char** argv) {
  Lesson lesson("07", "backward_cuda",
                "The five products of lesson 07 by a block of threads: each key's dK and dV in one thread's "
                "registers,\n"
                "and dQ, the sum over keys, added up in memory.");
  Index seq = 300, time_seq = gpu::emulated() ? 0 : 4096;
  lesson.options().option("--seq", seq, "Tokens S of the checks; need not be a multiple of a tile",
                          {2, 1 << 13});
  lesson.options().option("--time-seq", time_seq, "Tokens of the problem that is timed; 0: none",
                          {0, 1 << 17});
  lesson.offer_mutants({{"missing-scale", "dK without the scale"},
                        {"no-delta", "dS = P * dP"},
                        {"no-barrier", "dS is read before all of it is there"}});
  lesson.needs_gpu(cuda::why_no_device());
  if (!lesson.parse(argc, argv)) return 0;
  const Mistakes mistakes{lesson.mutant("missing-scale"), lesson.mutant("no-delta"),
                          lesson.mutant("no-barrier")};
  const cuda::Stream stream;
  gpu::describe_device(lesson);
  const Forward f(problem_of(lesson.seed(), 2, seq), stream.handle());
  const ReferenceGradients want = reference_of(f.p);

  lesson.heading("The failure: kernels that look right");
  show_mistakes(lesson, f, want);
  lesson.heading("The agreement");
  check_agreement(lesson, "", f, by_hand(f, mistakes), want);
  check_agreement(lesson, "the library's kernel `tiled`: ", f, by_library(f, "tiled"), want);
  if (time_seq > 0) {
    lesson.heading("The time");
    show_times(lesson, Forward(problem_of(lesson.seed(), 8, time_seq), stream.handle()));
  }
  return lesson.finish("dQ, dK, dV by 64 threads a block; P is never stored");
}

int main(int argc, char** argv) {
  return serial_main([&] { return backward_cuda_lesson(argc, argv); });
}
