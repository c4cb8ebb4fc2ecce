// Another program, with its own MPI_Init: attention and its gradients on all ranks, against the dense reference.
//
//     consumer RANKS     RANKS: how many there have to be

#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "ring_attention/attention/reference.hpp"
#include "ring_attention/core/compare.hpp"
#include "ring_attention/core/random.hpp"
#include "ring_attention/ring_attention.hpp"

namespace ra = ring_attention;

namespace {

/// The tokens `ranges` of one of the four random arrays.
template <class T>
ra::Tensor<T> make(const ra::Shape& global, std::uint64_t stream, const ra::TokenRanges& ranges) {
  ra::Tensor<T> array(global.with_seq(ra::count(ranges)));
  ra::fill_random(array.view(), {.seed = 7, .stream = stream}, global, ranges);
  return array;
}

bool agrees(const char* name, int rank, const ra::Tensor<double>& got, const ra::Tensor<double>& want) {
  const ra::Comparison comparison = ra::compare(got, want, {1e-13, 1e-13});
  std::printf("rank %d: %s: %s\n", rank, name, ra::describe(comparison).c_str());
  return comparison.ok;
}

const ra::Shape shape{1, 2, 37, 8};
const ra::Scoring scoring{1 / std::sqrt(8.0), ra::Mask::causal()};

/// In double: out and dQ of this rank's queries, as dense attention has them.
bool double_agrees(int rank, const ra::Placement& placement) {
  const ra::TokenRanges mine = placement.ranges(rank), all = ra::whole(shape.seq);
  const auto q = make<double>(shape, 0, mine), k = make<double>(shape, 1, mine),
             v = make<double>(shape, 2, mine), grad_out = make<double>(shape, 3, mine);
  const auto result = ra::forward(MPI_COMM_WORLD, q, k, v, placement, scoring);
  const auto gradients = ra::backward(MPI_COMM_WORLD, q, k, v, result, grad_out, placement, scoring);

  const auto all_k = make<double>(shape, 1, all), all_v = make<double>(shape, 2, all);
  const ra::Reference want = ra::reference_forward(q, all_k, all_v, scoring, mine);
  const ra::ReferenceGradients want_gradients =
      ra::reference_backward(q, all_k, all_v, grad_out, scoring, mine);
  const bool forward = agrees("out", rank, result.out, want.out);
  return agrees("dq", rank, gradients.q, want_gradients.q) && forward;
}

/// In float: two threads and the other transport give the bits of one thread.
bool float_is_the_same(int rank, const ra::Placement& placement) {
  const ra::TokenRanges mine = placement.ranges(rank);
  const auto q = make<float>(shape, 0, mine), k = make<float>(shape, 1, mine),
             v = make<float>(shape, 2, mine);
  const auto once = ra::forward(MPI_COMM_WORLD, q, k, v, placement, scoring);
  const auto again = ra::forward(MPI_COMM_WORLD, q, k, v, placement, scoring,
                                 {.threads = 2, .transport = ra::TransportKind::odd_even});
  return ra::bitwise_equal(once.out, again.out) && ra::bitwise_equal(once.lse, again.lse);
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
  MPI_Finalize();
  return ok ? 0 : 1;
}
