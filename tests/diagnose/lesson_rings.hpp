// The rings of the lessons on problems of the ladder, each right or with a mistake of its lesson. A rank of MPI is a rank
// of the job.
#pragma once

#include <unistd.h>

#include <map>

#include "diagnose/answers.hpp"
#include "ring_attention/core/eigen.hpp"
#include "ring_attention/cpu/backward.hpp"
#include "ring_attention/cpu/engine.hpp"
#include "ring_attention/mpi/collectives.hpp"
#include "support/run.hpp"

// Each idea in a namespace of its own: they share names.
#define lesson idea_03
#include "03_blockwise_attention/blockwise_attention.hpp"
#undef lesson
#define lesson idea_05
#include "05_blocking_ring/ring.hpp"
#undef lesson
#define lesson idea_06
#include "06_overlapped_ring/ring.hpp"
#undef lesson
#define lesson idea_06_early
#include "06_overlapped_ring/mutants/early_swap.hpp"
#undef lesson
#define lesson idea_07
#include "07_backward/backward.hpp"
#undef lesson
#define lesson idea_08
#include "08_ring_backward/ring.hpp"
#undef lesson
#include "08_ring_backward/part.hpp"
#include "09_load_balance/results.hpp"
#include "10_ulysses_and_hybrid/ulysses.hpp"
// after the idea
#include "10_ulysses_and_hybrid/run.hpp"
#include "12_masks_bias_dropout/pairs.hpp"
// after the idea
#include "12_masks_bias_dropout/part.hpp"

namespace ring_attention::diagnose {

/// What a rank returns, for its tokens.
struct Returned {
  TokenRanges tokens;
  AttentionResult<double> attended;
  Gradients<double> gradients;
};

/// The arrays of all ranks, on every rank.
inline Answer answer_of(const Communicator& comm, const Trial& problem, const Returned& rows) {
  Answer answer{&problem, {}};
  const std::array parts{&rows.attended.out, &rows.attended.lse, &rows.gradients.q, &rows.gradients.k,
                         &rows.gradients.v};
  for (const Array array : all_arrays) {
    Tensor<double> whole(problem.the_case.shape_of(array));
    test::put_rows(whole, *parts[static_cast<std::size_t>(array)], rows.tokens);
    sum_over_ranks(comm, whole.view().elements());  // the other ranks have 0 there
    answer.arrays[array] = std::move(whole);
  }
  return answer;
}

/// Lesson 03: a parcel is a tile.
class TileEngine : public Engine<float> {
 public:
  TileEngine(const Scoring& scoring, const idea_03::Choices& rules) : scoring_(scoring), rules_(rules) {}

  void begin(View<const float> q, const TokenRanges& ranges) {
    q_ = q;
    queries_ = ranges.front();
    for (Index head = 0; head < q.shape().heads; ++head)
      sums_.push_back(Partial<float>::empty({1, 1, q.shape().seq, q.shape().dim}));
  }
  void accumulate(const KeyValue<float>& kv, const Progress&) override {
    const TokenRange keys = kv.ranges.front();
    const Coverage coverage = scoring_.mask.coverage(queries_, keys);
    if (rules_.skip(coverage)) return;
    const Index group = require_attention_shapes(q_.shape(), kv.k.shape(), kv.v.shape());
    for (Index head = 0; head < q_.shape().heads; ++head) {
      Matrix<float> scores = matrix(q_, 0, head) * matrix(kv.k, 0, head / group).transpose();
      scores *= static_cast<float>(scoring_.scale);
      for (Index i = 0; i < scores.rows(); ++i)
        for (Index j = 0; j < scores.cols(); ++j)
          if (!scoring_.mask.allowed(queries_.begin + i, keys.begin + j))
            scores(i, j) = negative_infinity<float>;
      auto tile = Partial<float>::empty({1, 1, queries_.count, q_.shape().dim});
      idea_03::softmax_of_tile({scores.data(), scores.rows(), scores.cols()}, matrix(kv.v, 0, head / group),
                               tile, rules_);
      idea_03::merge_tile(sums_[static_cast<std::size_t>(head)], 0, tile, queries_.count, rules_);
    }
  }
  [[nodiscard]] AttentionResult<float> finish() override {
    AttentionResult<float> all{Tensor<float>(q_.shape()), Tensor<float>(q_.shape().per_row())};
    for (Index head = 0; head < q_.shape().heads; ++head) {
      const auto one = ring_attention::finish(std::move(sums_[static_cast<std::size_t>(head)]));
      matrix(all.out.view(), 0, head) = matrix(one.out.view(), 0, 0);
      matrix(all.lse.view(), 0, head) = matrix(one.lse.view(), 0, 0);
    }
    return all;
  }

 private:
  Scoring scoring_;
  idea_03::Choices rules_;
  View<const float> q_;
  TokenRange queries_;
  std::vector<Partial<float>> sums_;  // one a head
};

/// An engine that lets every parcel arrive before it computes: of a race, the way it goes with small parcels.
class AfterArrival : public Engine<float> {
 public:
  AfterArrival(std::unique_ptr<Engine<float>> engine, const Communicator& comm)
      : engine_(std::move(engine)), comm_(comm) {}
  void accumulate(const KeyValue<float>& kv, const Progress& progress) override {
    barrier(comm_);
    for (int i = 0; i < 50; ++i) {
      progress();
      usleep(20);
    }
    engine_->accumulate(kv, progress);
  }
  [[nodiscard]] AttentionResult<float> finish() override { return engine_->finish(); }

 private:
  std::unique_ptr<Engine<float>> engine_;
  const Communicator& comm_;
};

/// A ring of lessons 05 to 09. The right one, unless a test replaces a part of it.
struct LessonRing {
  decltype(&idea_05::ring) forward = idea_05::ring;
  int steps_left_out = 0;
  bool after_arrival = false;
  test::MakeForward<float> engine = test::make_forward<float, CpuEngine<float>>;
  lesson_08::Variant variant = lesson_08::Variant::right;
};

/// One rank of it.
class RankOfLessonRing {
 public:
  RankOfLessonRing(const Communicator& comm, const Trial& problem, const LessonRing& ring)
      : comm_(comm),
        scoring_(problem.scoring()),
        shape_(problem.the_case.kv()),
        ring_(ring),
        placement_(problem.job.placement, problem.the_case.tokens, comm.size()),
        ranges_(placement_.ranges(comm.rank())),
        q_(own(problem.q)),
        k_(own(problem.k)),
        v_(own(problem.v)),
        grad_out_(own(problem.dout)),
        bias_(problem.bias.size() > 0 ? own(problem.bias) : Tensor<float>()) {}

  [[nodiscard]] Returned run() const {
    AttentionResult<float> attended = forward();
    const Tensor<float> own_out = alone();
    const bool shard_delta = ring_.variant == lesson_08::Variant::shard_delta;
    CpuBackward<float> engine(scoring_);
    engine.begin({q_, shard_delta ? own_out : attended.out, attended.lse, grad_out_, bias_}, ranges_);
    idea_08::Parcel kv{parcel(), parcel(), 0};
    idea_08::Parcel gradients{Tensor<float>(kv.current.shape()), Tensor<float>(kv.current.shape()), 1};
    idea_08::ring(engine, kv, gradients, shape_, placement_, comm_,
                  lesson_08::gradient_hops(ring_.variant, comm_.size()));
    const Shape shard = k_.shape();
    const View<const float> dk(gradients.current.data(), shard),
        dv(gradients.current.data() + shard.size(), shard);
    return {ranges_,
            {converted<double>(attended.out), converted<double>(attended.lse)},
            {converted<double>(engine.finish()), converted<double>(dk), converted<double>(dv)}};
  }

 private:
  [[nodiscard]] Tensor<float> own(const Tensor<double>& whole) const {
    return test::rows_of(converted<float>(whole), ranges_);
  }
  /// Of this rank; as large as the largest one.
  [[nodiscard]] Tensor<float> parcel() const {
    Tensor<float> both(shape_.with_seq(2 * placement_.max_tokens()));
    std::ranges::copy(k_.view().elements(), both.data());
    std::ranges::copy(v_.view().elements(), both.data() + k_.size());
    return both;
  }
  [[nodiscard]] AttentionResult<float> forward() const {
    auto engine = ring_.engine(scoring_, 64, q_, ranges_, bias_);
    if (ring_.after_arrival) engine = std::make_unique<AfterArrival>(std::move(engine), comm_);
    Tensor<float> current = parcel(), incoming(current.shape());
    ring_.forward(*engine, current, incoming, shape_, placement_, comm_, comm_.size() - ring_.steps_left_out);
    return engine->finish();
  }
  /// The output over this rank's own keys.
  [[nodiscard]] Tensor<float> alone() const {
    const auto engine = test::make_forward<float, CpuEngine<float>>(scoring_, 64, q_, ranges_, bias_);
    engine->accumulate({k_, v_, ranges_});
    return engine->finish().out;
  }

  const Communicator& comm_;
  Scoring scoring_;
  Shape shape_;
  LessonRing ring_;
  Placement placement_;
  TokenRanges ranges_;
  Tensor<float> q_, k_, v_, grad_out_, bias_;
};

/// Lesson 07 on one device: a tile has the queries of one rank and the keys of another.
inline Answer by_hand(const Trial& problem, const idea_07::Mistakes& mistakes) {
  const DiagnoseCase& c = problem.the_case;
  Answer answer{&problem, {}};
  for (const Array array : all_arrays) answer.arrays[array] = Tensor<double>(c.shape_of(array));
  for (const Array array : of_forward) answer.arrays[array] = problem.right[array].clone();
  for (Index head = 0; head < c.heads; ++head) {
    const auto of = [&](const Tensor<double>& x, Index h) {
      return matrix(View<const double>(x.view()), 0, h);
    };
    const Tensor<double>& lse = problem.right[Array::lse];
    const Index kv = head / c.group();
    const idea_07::HeadGradients d = idea_07::backward_by_hand(
        of(problem.q, head), of(problem.k, kv), of(problem.v, kv), of(problem.right[Array::out], head),
        of(problem.dout, head), lse.view().head(0, head), c.scale(), c.tokens / problem.job.ranks, mistakes);
    matrix(answer.arrays[Array::dq].view(), 0, head) = d.q;
    matrix(answer.arrays[Array::dk].view(), 0, kv) += d.k;
    matrix(answer.arrays[Array::dv].view(), 0, kv) += d.v;
  }
  return answer;
}

/// Lesson 12's engines in a ring of the library.
inline Returned by_pairs(const Communicator& comm, const Trial& problem, lesson_12::Mistake mistake) {
  const DiagnoseCase& c = problem.the_case;
  const Placement placement(problem.job.placement, c.tokens, comm.size());
  const TokenRanges ranges = placement.ranges(comm.rank());
  lesson_12::Rules rules{.scale = c.scale(),
                         .left = c.window > 0 ? c.window - 1 : Mask::unlimited,
                         .right = c.causal ? 0 : Mask::unlimited};
  if (!c.documents.empty()) rules.documents = {c.documents.begin(), c.documents.end() - 1};
  rules.slopes = problem.slopes;
  rules.sinks = problem.sinks;
  const auto own = [&](const Tensor<double>& x) { return test::rows_of(x, ranges); };
  const Tensor<double> q = own(problem.q), grad_out = own(problem.dout),
                       bias = problem.bias.size() > 0 ? own(problem.bias) : Tensor<double>();
  const auto parcel = [&] {
    KvParcel<double> both(c.kv(), placement, comm.rank());
    std::ranges::copy(own(problem.k).view().elements(), both.k().elements().begin());
    std::ranges::copy(own(problem.v).view().elements(), both.v().elements().begin());
    return both;
  };
  const Ring ring{comm.rank(), comm.size()};
  Returned rows{ranges, {}, {}};
  lesson_12::PairEngine forward(rules, mistake, ring);
  forward.begin(q, ranges, bias);
  KvParcel<double> there = parcel(), again = parcel(), gradients(c.kv(), placement, comm.rank());
  OverlappedTransport transport(comm), kv_transport(comm, 0), gradient_transport(comm, 1);
  ring_forward(forward, transport, there);
  rows.attended = forward.finish();
  lesson_12::PairBackward backward(rules, mistake, ring);
  const BackwardInputs<double> result{q, rows.attended.out, rows.attended.lse, grad_out, bias};
  backward.begin(result, ranges);
  ring_backward(backward, kv_transport, gradient_transport, again, gradients);
  rows.gradients.q = backward.finish();
  rows.gradients.k = converted<double>(View<const double>(gradients.k()));
  rows.gradients.v = converted<double>(View<const double>(gradients.v()));
  return rows;
}

/// A case with the arrays of lesson 10, which every rank makes from a seed.
inline Trial problem_of_lesson_10(const DiagnoseCase& c, const JobShape& job, const RandomProblem& random) {
  Trial problem(c, job, 1);
  problem.q = converted<double>(random.make<float>(random.q, 0, whole(c.tokens)));
  problem.k = converted<double>(random.keys<float>());
  problem.v = converted<double>(random.values<float>());
  problem.dout = converted<double>(random.make<float>(random.q, 3, whole(c.tokens)));
  return problem;
}

}  // namespace ring_attention::diagnose
