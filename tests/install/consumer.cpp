// Another program, with its own MPI_Init: attention and its gradients on all ranks, against dense attention.
//
//     consumer RANKS     RANKS: how many there have to be

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <vector>

#include "ring_attention/observed_call.hpp"
#include "ring_attention/parallel/balance/balanced.hpp"
#include "ring_attention/parallel/function_device.hpp"
#include "ring_attention/parallel/same_bits_processor.hpp"
#include "ring_attention/partitions.hpp"
#include "ring_attention/peer_ranks.hpp"
#include "ring_attention/ring_attention.hpp"

namespace ra = ring_attention;

namespace {

const ra::Shape shape{1, 2, 37, 8};
const ra::Scoring scoring{1 / std::sqrt(8.0), ra::Mask::causal()};

enum Array { queries, keys, values, grad_out };

/// One element of an array: the same on any number of ranks.
double element(Array array, ra::Index head, ra::Index token, ra::Index column) {
  const double place = 2.7 * static_cast<int>(array) + 1.3 * static_cast<double>(head);
  return std::sin(place + static_cast<double>((token + 3) * (column + 2)));
}

double dot(Array a, ra::Index token, Array b, ra::Index other, ra::Index head) {
  double sum = 0;
  for (ra::Index i = 0; i < shape.dim; ++i) sum += element(a, head, token, i) * element(b, head, other, i);
  return sum;
}

/// These tokens of an array.
template <class T>
ra::Tensor<T> make(Array array, const std::vector<ra::Index>& tokens) {
  ra::Tensor<T> part({shape.batch, shape.heads, static_cast<ra::Index>(tokens.size()), shape.dim});
  T* next = part.data();
  for (ra::Index head = 0; head < shape.heads; ++head)
    for (const ra::Index token : tokens)
      for (ra::Index i = 0; i < shape.dim; ++i) *next++ = static_cast<T>(element(array, head, token, i));
  return part;
}

/// out and dq of one query, from all scores of its row.
struct Row {
  std::vector<double> out, dq;
};
Row dense(ra::Index head, ra::Index query) {
  std::vector<double> p;
  double sum = 0;
  for (ra::Index key = 0; key <= query; ++key) {
    p.push_back(std::exp(scoring.scale * dot(queries, query, keys, key, head)));
    sum += p.back();
  }
  const auto dim = static_cast<std::size_t>(shape.dim);
  Row row{std::vector<double>(dim), std::vector<double>(dim)};
  double delta = 0;  // the sum over keys of p_j (dout . v_j)
  for (ra::Index key = 0; key <= query; ++key) {
    double& p_j = p[static_cast<std::size_t>(key)];
    p_j /= sum;
    delta += p_j * dot(grad_out, query, values, key, head);
    for (std::size_t i = 0; i < dim; ++i)
      row.out[i] += p_j * element(values, head, key, static_cast<ra::Index>(i));
  }
  for (ra::Index key = 0; key <= query; ++key) {
    const double ds = p[static_cast<std::size_t>(key)] * (dot(grad_out, query, values, key, head) - delta);
    for (std::size_t i = 0; i < dim; ++i)
      row.dq[i] += scoring.scale * ds * element(keys, head, key, static_cast<ra::Index>(i));
  }
  return row;
}

/// In double: out and dq of this rank's queries, as dense attention has them.
bool double_agrees(int rank, const ra::Placement& placement) {
  const std::vector<ra::Index> tokens = ra::positions(placement.ranges(rank));
  const auto q = make<double>(queries, tokens), k = make<double>(keys, tokens),
             v = make<double>(values, tokens), dout = make<double>(grad_out, tokens);
  const ra::Attention ring{ra::mpi(MPI_COMM_WORLD)};
  const auto result = ra::forward(ring, q, k, v, placement, scoring);
  const auto gradients = ra::backward(ring, q, k, v, result, dout, placement, scoring);

  double error = 0;
  std::size_t next = 0;
  for (ra::Index head = 0; head < shape.heads; ++head)
    for (const ra::Index token : tokens) {
      const Row want = dense(head, token);
      for (std::size_t i = 0; i < want.out.size(); ++i, ++next)
        error +=
            std::abs(result.out.data()[next] - want.out[i]) + std::abs(gradients.q.data()[next] - want.dq[i]);
    }
  std::printf("rank %d: out and dq differ by %.1e, summed over all elements\n", rank, error);
  return error < 1e-11;
}

template <class T>
bool same_bits(const ra::Tensor<T>& a, const ra::Tensor<T>& b) {
  return a.shape() == b.shape() && std::memcmp(a.data(), b.data(), a.bytes()) == 0;
}

/// In float: two threads give the bits of one thread.
bool float_is_the_same(int rank, const ra::Placement& placement) {
  const std::vector<ra::Index> tokens = ra::positions(placement.ranges(rank));
  const auto q = make<float>(queries, tokens), k = make<float>(keys, tokens), v = make<float>(values, tokens);
  const auto once = ra::forward({ra::mpi(MPI_COMM_WORLD)}, q, k, v, placement, scoring);
  const auto again = ra::forward({ra::mpi(MPI_COMM_WORLD), ra::cores(2)}, q, k, v, placement, scoring);
  return same_bits(once.out, again.out) && same_bits(once.lse, again.lse);
}

/// In float: each element of out is that of dense attention, but for roundings.
bool float_agrees(const ra::Attention& ring, int rank, const ra::Placement& placement) {
  const std::vector<ra::Index> tokens = ra::positions(placement.ranges(rank));
  const auto q = make<float>(queries, tokens), k = make<float>(keys, tokens), v = make<float>(values, tokens);
  const auto result = ra::forward(ring, q, k, v, placement, scoring);
  bool ok = true;
  const float* next = result.out.data();
  for (ra::Index head = 0; head < shape.heads; ++head)
    for (const ra::Index token : tokens)
      for (const double want : dense(head, token).out)
        ok = std::abs(*next++ - want) < 1e-5 && ok;  // false for NaN
  return ok;
}

/// A kernel of the user's: one score at a time.
ra::AttentionResult<float> one_by_one(const ra::AttentionTask<float>& task) {
  const std::vector<ra::Index> at = ra::positions(task.queries), of = ra::positions(task.keys);
  ra::AttentionResult<float> result{ra::Tensor<float>({1, shape.heads, task.q.shape().seq, shape.dim}),
                                    ra::Tensor<float>({1, shape.heads, task.q.shape().seq, 1})};
  for (ra::Index head = 0; head < shape.heads; ++head)
    for (ra::Index i = 0; i < task.q.shape().seq; ++i) {
      std::vector<double> out(static_cast<std::size_t>(shape.dim));
      double sum = 0;
      for (ra::Index j = 0; j < task.k.shape().seq; ++j) {
        if (of[static_cast<std::size_t>(j)] > at[static_cast<std::size_t>(i)]) continue;
        double score = 0;
        for (ra::Index c = 0; c < shape.dim; ++c) score += task.q(0, head, i, c) * task.k(0, head, j, c);
        const double p = std::exp(task.scoring.scale * score);
        sum += p;
        for (ra::Index c = 0; c < shape.dim; ++c)
          out[static_cast<std::size_t>(c)] += p * task.v(0, head, j, c);
      }
      for (ra::Index c = 0; c < shape.dim; ++c)
        result.out.view()(0, head, i, c) = static_cast<float>(out[static_cast<std::size_t>(c)] / sum);
      result.lse.view()(0, head, i, 0) = static_cast<float>(std::log(sum));
    }
  return result;
}

struct StepCounter : ra::Observer {
  int steps = 0;
  void step(int, const ra::TokenRanges&) override { ++steps; }
};

/// What has a header of its own computes the same attention.
bool features_agree(int rank, int ranks, const ra::Placement& placement) {
  const auto mpi = [] { return ra::mpi(MPI_COMM_WORLD); };
  StepCounter counter;
  const bool right[] = {
      float_agrees({mpi()}, rank, placement),
      float_agrees({ra::observed(mpi(), {&counter}), ra::observed(ra::cores(), {&counter})}, rank, placement),
      float_agrees({mpi(), ra::kernel<float>(one_by_one)}, rank, placement),
      float_agrees({mpi(), ra::cores(), ra::all_gather()}, rank, placement),
      float_agrees({mpi()}, rank, ra::balanced(shape.seq, ranks, scoring.mask)),
      float_agrees({mpi(), ra::same_bits(8)}, rank,
                   ra::Placement(ra::PlacementKind::zigzag, ra::Tiling(8).cuts(shape.seq), ranks))};
  const bool ok =
      counter.steps > 0 && std::all_of(std::begin(right), std::end(right), [](bool one) { return one; });
  if (!ok) std::printf("rank %d: a feature's result is not that of dense attention\n", rank);
  return ok;
}

}  // namespace

int main(int argc, char** argv) {
  int level = MPI_THREAD_SINGLE, rank = 0, ranks = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  bool ok = ranks == (argc > 1 ? std::atoi(argv[1]) : 1);
  const ra::Placement placement(ra::PlacementKind::contiguous, shape.seq, ranks);
  ok = double_agrees(rank, placement) && ok;
  ok = float_is_the_same(rank, placement) && ok;
  ok = features_agree(rank, ranks, placement) && ok;
  MPI_Finalize();
  return ok ? 0 : 1;
}
