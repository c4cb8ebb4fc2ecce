// Lesson 08 between GPUs, beside the idea: one rank's part of a problem in device memory, and what is timed of it.
#pragma once

#include "common/nccl_times.hpp"
#include "ring_attention/ring/forward.hpp"

namespace ring_attention::lesson_08 {

// The lesson's ring on numbers of the type T, again and again, after one forward by the library's ring.
template <class T>
class BackwardRun {
 public:
  BackwardRun(const RandomProblem& problem, const Placement& placement, const Communicator& comm,
              gpu::Gpus& gpus)
      : problem_(problem),
        placement_(placement),
        gpus_(gpus),
        ring_{comm.rank(), comm.size()},
        q_(cuda::uploaded<T>(problem.queries<float>(ranges()), stream())),
        grad_out_(cuda::uploaded<T>(problem.make<float>(problem.q, 3, ranges()), stream())),
        kv_{gpu::uploaded_parcel<T>(problem, placement, comm.rank(), gpus.compute), {}},
        gradients_{cuda::DeviceTensor<float>(kv_.current.shape()),
                   cuda::DeviceTensor<float>(kv_.current.shape())},
        engine_(problem.scoring, {.stream = stream()}) {
    kv_.incoming = cuda::DeviceTensor<T>(kv_.current.shape());
    {
      CudaEngine<T> forward(problem.scoring, {.stream = stream()});
      forward.begin(q_, ranges());
      auto kv = gpu::library_parcel<T>(problem, placement, comm.rank(), gpus);
      NcclTransport transport(gpus.world, stream());
      ring_forward(forward, transport, kv);
      attended_ = forward.finish();
    }
    engine_.begin({q_, attended_.out, attended_.lse, grad_out_}, ranges());
  }

  // All steps, and nothing is sent.
  void compute() {
    for (int step = 0; step < ring_.steps(); ++step) {
      const int owner = ring_.owner(step);
      const Shape shape = problem_.kv.with_seq(placement_.tokens(owner));
      const View<T> k(kv_.current.data(), shape), v(kv_.current.data() + k.size(), shape);
      const View<float> dk(gradients_.current.data(), shape),
          dv(gradients_.current.data() + dk.size(), shape);
      engine_.accumulate({k, v, placement_.ranges(owner)}, {dk, dv});
    }
  }
  // All hops, and nothing is computed but the sums.
  void messages() {
    gpu::NoBackward<T> none;
    run(none, gpus_.transfer);
  }
  void ring(const cuda::Stream& transfer) { run(engine_, transfer); }

  // A new run: dQ of some rows.
  void check(Lesson& lesson, const std::string& what) {
    ring(gpus_.transfer);
    const Tensor<float> got = engine_.finish();
    const gpu::Sample<T> sample(problem_, ranges(), ring_.rank);
    const ReferenceGradients want = sample.backward();
    Tolerance tolerance = gradient_tolerance<float>(problem_.kv.seq, want.max_abs_score, want.magnitude_q);
    tolerance.absolute += 2 * cuda::unit_roundoff(cuda::type_of<T>) * want.magnitude_q;
    const bool zero = std::ranges::all_of(want.q.view().elements(), [](double x) { return x == 0; });
    lesson.check(what + ": a sample of dQ",
                 compare(sample.rows_of(got, stream()), want.q, tolerance, {.expect_zero = zero}));
  }

 private:
  [[nodiscard]] TokenRanges ranges() const { return placement_.ranges(ring_.rank); }
  [[nodiscard]] cuda::StreamHandle stream() const { return gpus_.compute.handle(); }
  void run(BackwardEngine<T>& engine, const cuda::Stream& transfer) {
    kv_.arrived.clear();
    gradients_.arrived.clear();
    lesson::ring(engine, kv_, gradients_, problem_.kv, placement_, ring_, gpus_.ranks, gpus_.compute,
                 transfer, ring_.gradient_hops());
  }

  RandomProblem problem_;
  Placement placement_;
  gpu::Gpus& gpus_;
  Ring ring_;
  cuda::DeviceTensor<T> q_, grad_out_;
  AttentionResult<float> attended_;
  lesson::Parcel<T> kv_;
  lesson::Parcel<float> gradients_;
  CudaBackward<T> engine_;
};

}  // namespace ring_attention::lesson_08
