// Lesson 06 between GPUs, beside the idea: one rank's part of a problem in device memory, and what is timed of it.
#pragma once

#include "common/nccl_times.hpp"

namespace ring_attention::lesson_06 {

// The lesson's ring on numbers of the type T, again and again.
template <class T>
class ForwardRun {
 public:
  ForwardRun(const RandomProblem& problem, const Placement& placement, const Communicator& comm,
             gpu::Gpus& gpus)
      : problem_(problem),
        placement_(placement),
        gpus_(gpus),
        ring_{comm.rank(), comm.size()},
        q_(cuda::uploaded<T>(problem.queries<float>(ranges()), stream())),
        current_(gpu::uploaded_parcel<T>(problem, placement, comm.rank(), gpus.compute)),
        incoming_(current_.shape()),
        engine_(problem.scoring, {.stream = stream(), .reserved_sms = 8}) {
    engine_.begin(q_, ranges());
  }

  // All steps, and nothing is sent.
  void compute() {
    for (int step = 0; step < ring_.steps(); ++step) {
      const int owner = ring_.owner(step);
      const Shape shape = problem_.kv.with_seq(placement_.tokens(owner));
      const View<T> k(current_.data(), shape), v(current_.data() + k.size(), shape);
      engine_.accumulate({k, v, placement_.ranges(owner)});
    }
  }
  // All hops, and nothing is computed.
  void messages() {
    gpu::NoEngine<T> none;
    run(none, gpus_.transfer);
  }
  void ring(const cuda::Stream& transfer) { run(engine_, transfer); }

  // A new run: out and lse of some rows.
  void check(Lesson& lesson, const std::string& what) {
    ring(gpus_.transfer);
    const AttentionResult<float> got = engine_.finish();
    const gpu::Sample<T> sample(problem_, ranges(), ring_.rank);
    const Reference want = sample.forward();
    lesson.check(what + ": a sample of out",
                 compare(sample.rows_of(got.out, stream()), want.out, gpu::tolerance_in<T>(problem_, want)));
    lesson.check(what + ": and of lse",
                 compare(sample.rows_of(got.lse, stream()), want.lse, problem_.tolerance<float>(want)));
  }

 private:
  [[nodiscard]] TokenRanges ranges() const { return placement_.ranges(ring_.rank); }
  [[nodiscard]] cuda::StreamHandle stream() const { return gpus_.compute.handle(); }
  void run(Engine<T>& engine, const cuda::Stream& transfer) {
    lesson::ring(engine, current_, incoming_, problem_.kv, placement_, ring_, gpus_.ranks, gpus_.compute,
                 transfer);
  }

  RandomProblem problem_;
  Placement placement_;
  gpu::Gpus& gpus_;
  Ring ring_;
  cuda::DeviceTensor<T> q_, current_, incoming_;
  CudaEngine<T> engine_;
};

}  // namespace ring_attention::lesson_06
