// A program of somebody else's: the ring over MPI against the dense reference.
//
//     consumer RANKS     RANKS: how many there have to be

#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "ring_attention/attention/blockwise.hpp"
#include "ring_attention/attention/reference.hpp"
#include "ring_attention/core/compare.hpp"
#include "ring_attention/core/random.hpp"
#include "ring_attention/mpi/communicator.hpp"
#include "ring_attention/ring/forward.hpp"
#include "ring_attention/ring/transports/odd_even.hpp"

namespace ra = ring_attention;

namespace {

/// The tokens `runs` of one of the three random arrays.
ra::Tensor<double> make(const ra::Shape& global, std::uint64_t stream, const ra::TokenRanges& ranges) {
  ra::Tensor<double> array(global.with_seq(ra::count(ranges)));
  ra::fill_random(array.view(), {.seed = 7, .stream = stream}, global, ranges);
  return array;
}

int body(const ra::Communicator& comm, int ranks) {
  ra::require_world_size(comm, ranks);
  const ra::Shape shape{1, 2, 37, 8};
  const ra::Scoring scoring{1 / std::sqrt(8.0), ra::Mask::causal()};
  const ra::Placement placement(ra::PlacementKind::contiguous, shape.seq, comm.size());
  const ra::TokenRanges mine = placement.ranges(comm.rank());

  const ra::Tensor<double> q = make(shape, 0, mine);
  ra::KvParcel<double> kv(shape, placement, comm.rank());
  ra::fill_random(kv.k(), {.seed = 7, .stream = 1}, shape, mine);
  ra::fill_random(kv.v(), {.seed = 7, .stream = 2}, shape, mine);

  ra::BlockwiseEngine<double> engine(scoring, 16);
  ra::OddEvenTransport transport(comm);
  engine.begin(q.view(), mine);
  ra::ring_forward(engine, transport, kv);
  const ra::AttentionResult<double> result = engine.finish();

  const ra::Tensor<double> k = make(shape, 1, ra::whole(shape.seq));
  const ra::Tensor<double> v = make(shape, 2, ra::whole(shape.seq));
  const ra::Reference want = ra::reference_forward(q.view(), k.view(), v.view(), scoring, mine);
  const ra::Comparison comparison = ra::compare(result.out, want.out, {1e-13, 1e-13});
  std::printf("rank %d of %d: %s\n", comm.rank(), comm.size(), ra::describe(comparison).c_str());
  return ra::all_of_ranks(comm, comparison.ok) ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 1;
  return ra::mpi_main(argc, argv, [ranks](const ra::Communicator& comm) { return body(comm, ranks); });
}
