// A small model on meshes of threads, and its numbers as those of one process.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "model/adamw.hpp"
#include "ring_attention/core/compare.hpp"
#include "ring_attention/parallel/collectives/sum.hpp"
#include "ring_attention/parallel/mpi_links.hpp"
#include "ring_attention/parallel/peer_links.hpp"
#include "ring_attention/ring/transports/loopback.hpp"
#include "ring_attention/ring/transports/odd_even.hpp"

namespace ring_attention::test {

using namespace model;  // NOLINT: the folder under test

/// Random tokens; about one of three has a label.
class RandomTask final : public Task {
 public:
  explicit RandomTask(Index seq) : seq_(seq) {}
  [[nodiscard]] Index vocabulary() const override { return 23; }
  [[nodiscard]] Index first_class() const override { return 7; }
  [[nodiscard]] Index classes() const override { return 5; }
  [[nodiscard]] Index seq() const override { return seq_; }
  [[nodiscard]] Index token(Index sequence, Index position) const override {
    return static_cast<Index>(hash(1, sequence, position, 1) % 23);
  }
  [[nodiscard]] Index label(Index sequence, Index position) const override {
    const auto number = hash(1, sequence, position, 2);
    return number % 3 == 0 ? static_cast<Index>(number / 3 % 5) : none;
  }

 private:
  Index seq_;
};

/// 8 query heads, 4 KV heads, two layers, rotary positions.
inline ModelShape small_shape() {
  return {.vocabulary = 23,
          .first_class = 7,
          .classes = 5,
          .layers = 2,
          .width = 12,
          .heads = 8,
          .kv_heads = 4,
          .dim = 4,
          .hidden = 17,
          .rotary = 2,
          .theta = 10};
}

/// The matrices of a model by name, `layer 0 wq`, whole.
using Named = std::map<std::string, Tensor<double>>;

/// Calls visit(name, parameter) for all matrices.
void for_each_part(const std::vector<ParameterLayout>& layouts, auto visit) {
  for (std::size_t array = 0; array < layouts.size(); ++array)
    for (const Parameter& p : layouts[array].parameters())
      visit("array " + std::to_string(array) + " " + p.name, p);
}

inline Named zeros_of(const ModelShape& shape) {
  Named all;
  for_each_part(layouts(shape, TensorPart(shape, 0, 1)), [&](const std::string& name, const Parameter& p) {
    all.emplace(name, Tensor<double>({1, 1, p.all_rows, p.all_columns}));
  });
  return all;
}

/// What a training did.
struct Trained {
  std::vector<StepReport> steps;
  Named gradients;  // of the first step
  Named weights;    // after the last
  double labels_of_ranks = 0;
};

/// What is trained, and how.
struct Training {
  ModelShape shape = small_shape();
  Index seq = 19, batch = 8, steps = 10;
  PlacementKind kind = PlacementKind::zigzag;
  ContextKind context = ContextKind::hybrid;
  Sharding sharding = Sharding::none;
  Dropout dropout = {};
  Index chunk = 5;
  CpuOptions cpu = {};
};

inline Recipe small_recipe() { return {.warm_up = 3, .steps = 10}; }

/// All numbers of a rank, in their places. Collective where the weights are sharded.
template <class T>
Named named(Weights<T>& weights, const ModelShape& shape, bool gradients) {
  std::vector<Tensor<T>> arrays;
  for (std::size_t array = 0; array < weights.arrays(); ++array) {
    const std::span<const T> kept = gradients ? weights.gradients(array) : weights.values(array);
    arrays.emplace_back(Shape{1, 1, 1, weights.layout(array).size()});
    if (weights.sharding() == Sharding::fsdp)
      all_gather(weights.replicas(), kept, arrays[array].view().elements());
    else
      std::ranges::copy(kept, arrays[array].data());
  }
  Named all = zeros_of(shape);
  std::size_t array = 0;
  for_each_part(weights.layouts(), [&](const std::string& name, const Parameter& p) {
    if (name.find("array " + std::to_string(array)) != 0) ++array;
    const Index columns = p.columns.end - p.columns.begin;
    for (Index i = 0; i < p.size(); ++i)
      all.at(name).view()(0, 0, p.rows.begin + i / columns, p.columns.begin + i % columns) =
          static_cast<double>(arrays[array].data()[p.begin + i]);
  });
  return all;
}

/// One rank's training.
template <class T>
Trained train_rank(const Training& what, RankContext<T> place, Interval sequences) {
  Trained trained;
  const RandomTask task(what.seq);
  const TokenRanges tokens = place.tokens;
  Transformer<T> model(what.shape, std::move(place), 5, what.sharding);
  model.scoring().dropout = what.dropout;
  model.set_chunk(what.chunk);
  AdamW<T> adam(model.weights());
  for (Index step = 0; step < what.steps; ++step) {
    const Index first = step * what.batch;
    const Examples own = examples(task, {first + sequences.begin, first + sequences.end}, tokens);
    if (step == 0) trained.labels_of_ranks = static_cast<double>(own.labels());
    trained.steps.push_back(train_step(model, adam, small_recipe(), own));
    if (step == 0) trained.gradients = named(model.weights(), what.shape, true);
  }
  trained.weights = named(model.weights(), what.shape, false);
  return trained;
}

/// In one process.
template <class T>
Trained train_alone(const Training& what) {
  return train_rank<T>(what, one_process<T>(what.seq), {0, what.batch});
}

/// The links of a rank among threads, or over MPI.
inline ModelLinks loopback_links(LoopbackWorld& world, int rank, const MeshShape& shape,
                                 const ModelShape& model) {
  const Mesh mesh(rank, world.ranks(), shape);
  return {std::make_shared<PeerLinks>(world.peers(rank), mesh.ulysses(), mesh.ring()), mesh, model};
}
inline ModelLinks mpi_links(const Communicator& comm, const MeshShape& shape, const ModelShape& model,
                            bool odd_even = false) {
  const Mesh mesh(comm.rank(), comm.size(), shape);
  if (odd_even)
    return {std::make_shared<MpiLinksOver<OddEvenTransport>>(comm, mesh.ulysses(), mesh.ring()), mesh, model};
  return {std::make_shared<MpiLinks>(comm, mesh.ulysses(), mesh.ring()), mesh, model};
}

/// A rank of a mesh.
template <class T>
Trained train_in(const ModelLinks& links, const Training& what) {
  return train_rank<T>(what, rank_context<T>(links, what.kind, what.seq, what.batch, what.context, what.cpu),
                       links.mesh.sequences(what.batch));
}

/// The results of every rank, with its part of the matrices in their places.
template <class T>
std::vector<Trained> train_ranks(const MeshShape& mesh, const Training& what) {
  std::vector<Trained> ranks(static_cast<std::size_t>(mesh.ranks()));
  LoopbackWorld world(mesh.ranks(), {}, std::chrono::seconds(20));
  world.run([&](int rank) {
    ranks[static_cast<std::size_t>(rank)] = train_in<T>(loopback_links(world, rank, mesh, what.shape), what);
  });
  return ranks;
}

/// The parts of the first ranks of the tensor groups as whole matrices.
inline Named merged(const std::vector<Trained>& ranks, Named Trained::* which, const ModelShape& shape,
                    int tensor) {
  Named all = zeros_of(shape);
  for (int index = 0; index < tensor; ++index) {
    const std::vector<ParameterLayout> of_rank = layouts(shape, TensorPart(shape, index, tensor));
    const Named& own = ranks[static_cast<std::size_t>(index)].*which;
    for_each_part(of_rank, [&](const std::string& name, const Parameter& p) {
      for (Index row = p.rows.begin; row < p.rows.end; ++row)
        for (Index column = p.columns.begin; column < p.columns.end; ++column)
          all.at(name).view()(0, 0, row, column) = own.at(name).view()(0, 0, row, column);
    });
  }
  return all;
}

/// The results of all ranks as those of one.
template <class T>
Trained train_on(const MeshShape& mesh, const Training& what) {
  const std::vector<Trained> ranks = train_ranks<T>(mesh, what);
  Trained all{ranks.front().steps, merged(ranks, &Trained::gradients, what.shape, mesh.tensor),
              merged(ranks, &Trained::weights, what.shape, mesh.tensor)};
  for (int rank = 0; rank < mesh.ranks(); rank += mesh.tensor)
    all.labels_of_ranks += ranks[static_cast<std::size_t>(rank)].labels_of_ranks;
  return all;
}

/// Every matrix by itself, so that an error in one is not hidden by the others.
inline testing::AssertionResult near(const Named& got, const Named& want, double tolerance) {
  if (got.size() != want.size()) return testing::AssertionFailure() << "other matrices";
  for (const auto& [name, matrix] : want) {
    const Comparison comparison =
        compare(got.at(name), matrix, {.absolute = HUGE_VAL});  // finite, not all zero
    if (!comparison.ok || !(comparison.relative_error <= tolerance))
      return testing::AssertionFailure() << name << " " << describe(comparison);
  }
  return testing::AssertionSuccess();
}

inline testing::AssertionResult same_bits(const Named& a, const Named& b) {
  for (const auto& [name, matrix] : a)
    if (!bitwise_equal(matrix, b.at(name)))
      return testing::AssertionFailure() << name << " differs in its bits";
  return testing::AssertionSuccess();
}

/// Two trainings have the same bits: losses, norms, answers, gradients and weights.
inline testing::AssertionResult same_bits(const Trained& got, const Trained& want) {
  for (std::size_t step = 0; step < want.steps.size(); ++step) {
    const StepReport &a = got.steps[step], &b = want.steps[step];
    if (a.score.loss != b.score.loss) return testing::AssertionFailure() << "loss of step " << step;
    if (a.gradient_norm != b.gradient_norm) return testing::AssertionFailure() << "norm of step " << step;
    if (a.score.correct != b.score.correct) return testing::AssertionFailure() << "answers of step " << step;
  }
  if (const auto gradients = same_bits(got.gradients, want.gradients); !gradients)
    return testing::AssertionFailure() << "gradients: " << gradients.message();
  return same_bits(got.weights, want.weights);
}

}  // namespace ring_attention::test
