// Bad arguments of forward and backward: all ranks throw the same AgreedError, before any message of the ring, and the
// next call works.

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <new>

#include "ring_attention/attention/mask_sets.hpp"
#include "ring_attention/core/random.hpp"
#include "ring_attention/observed_call.hpp"
#include "ring_attention/parallel/cpu_device.hpp"
#include "ring_attention/parallel/same_bits_processor.hpp"
#include "ring_attention/ring_attention.hpp"
#include "support/agreed_error.hpp"
#include "support/input_error.hpp"

namespace {
int ring_messages = 0;
}

// MPI's profiling interface counts the calls with which the transports begin a hop.
extern "C" int MPI_Irecv_c(void* buffer, MPI_Count count, MPI_Datatype type, int from, int tag, MPI_Comm comm,
                           MPI_Request* request) {
  ++ring_messages;
  return PMPI_Irecv_c(buffer, count, type, from, tag, comm, request);
}
extern "C" int MPI_Send_c(const void* buffer, MPI_Count count, MPI_Datatype type, int to, int tag,
                          MPI_Comm comm) {
  ++ring_messages;
  return PMPI_Send_c(buffer, count, type, to, tag, comm);
}

namespace ring_attention::test {
namespace {

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();
constexpr double infinite = std::numeric_limits<double>::infinity();

Placement placed(Index tokens, PlacementKind kind = PlacementKind::contiguous) {
  int size = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return {kind, tokens, size};
}

int rank_of_world() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

/// Arguments of a call: good ones, of which a test spoils one. 13 queries, 17 keys, 4 heads, 2 KV heads, dim 8.
template <class T>
struct Arguments {
  Placements placement{placed(13), placed(17)};
  Tensor<T> q{{1, 4, placement.queries.tokens(rank_of_world()), 8}, T{1}};
  Tensor<T> k{{1, 2, placement.keys.tokens(rank_of_world()), 8}, T{1}};
  Tensor<T> v{k.shape(), T{1}};
  Tensor<T> grad_out{q.shape(), T{1}};
  std::optional<Tensor<T>> bias;
  AttentionResult<T> result{Tensor<T>(q.shape()), Tensor<T>(q.shape().per_row())};
  Scoring scoring{0.5, Mask::causal(4), alibi_slopes(4)};
  Attention attention{mpi(MPI_COMM_WORLD)};
  bool nulls = false;

  void forward() const { (void)ring_attention::forward(attention, q, k, given(v), placement, scoring, bias); }
  void backward() const {
    (void)ring_attention::backward(attention, q, k, given(v), result, grad_out, placement, scoring, bias);
  }
  [[nodiscard]] View<const T> given(const Tensor<T>& array) const {
    return {nulls ? nullptr : array.data(), array.shape()};
  }
};

using Spoil = std::function<void(Arguments<float>&)>;

/// The message of the AgreedError that `call` throws, before any message of the ring.
std::string agreed_message(const std::function<void()>& call) {
  const int before = ring_messages;
  const std::string message = agreed_error(call);
  EXPECT_EQ(ring_messages, before) << "the ring had begun";
  return message;
}

/// Both calls, spoilt on these ranks, throw an error with `part`; afterwards the right call works.
void expect_refused(const Spoil& spoil, const std::string& part, int from_rank = 0) {
  Arguments<float> arguments;
  if (rank_of_world() >= from_rank) spoil(arguments);
  for (const auto& call : std::initializer_list<std::function<void()>>{[&] { arguments.forward(); },
                                                                       [&] { arguments.backward(); }}) {
    const std::string message = agreed_message(call);
    EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' is not in: " << message;
  }
  const int before = ring_messages;
  EXPECT_NO_THROW(Arguments<float>().forward());
  EXPECT_EQ(ring_messages > before, placed(0).ranks() > 1) << "the count of messages does not count";
}

/// Spoilt on the last rank alone.
void expect_refused_on_some(const Spoil& spoil, const std::string& part) {
  const int last = placed(0).ranks() - 1;
  expect_refused(spoil, "rank " + std::to_string(last) + ": " + part, last);
}

// ---- bad on some ranks or on all -----------------------------------------------------------------------

TEST(Arguments, ShapesThatAreNotDue) {
  const auto other = [](const Tensor<float>& array, Index heads, Index seq, Index dim) {
    return Tensor<float>({1, heads, array.shape().seq + seq, dim}, 1);
  };
  expect_refused_on_some([&](auto& a) { a.q = other(a.q, 4, 1, 8); }, "q is [1, 4, ");
  expect_refused_on_some([&](auto& a) { a.k = other(a.k, 2, 1, 8); }, "k is [1, 2, ");
  expect_refused_on_some([&](auto& a) { a.k = other(a.k, 2, 0, 4); }, "k is [1, 2, ");
  expect_refused_on_some([&](auto& a) { a.v = other(a.v, 1, 0, 8); }, "v is [1, 1, ");
  expect_refused_on_some([&](auto& a) { a.v = other(a.v, 2, 1, 5); }, "v is [1, 2, ");
  expect_refused_on_some([&](auto& a) { a.v = Tensor<float>({1, 2, 17, 0}); }, "v is [1, 2, 17, 0]");
  expect_refused([&](auto& a) { a.k = other(a.k, 3, 0, 8); }, "and the KV heads divide the heads",
                 placed(0).ranks() - 1);
  expect_refused_on_some([&](auto& a) { a.q = Tensor<float>({1, 0, 13, 8}); }, "q is [1, 0, 13, 8]");
}

TEST(Arguments, ShapesOfTheBackward) {
  const auto message = [](const Spoil& spoil) {
    Arguments<float> arguments;
    spoil(arguments);
    return agreed_message([&] { arguments.backward(); });
  };
  EXPECT_EQ(
      message([](auto& a) { a.grad_out = Tensor<float>({2, 4, 1, 8}); }).find("rank 0: grad_out is [2, "), 0);
  EXPECT_EQ(message([](auto& a) {
              a.v = Tensor<float>(a.v.shape().with_dim(5));
            }).find("rank 0: result.out is [1, 4, "),
            0);
  EXPECT_EQ(
      message([](auto& a) { a.result.lse = Tensor<float>({1, 4, 9, 2}); }).find("rank 0: result.lse is "), 0);
  EXPECT_EQ(
      message([](auto& a) { a.result.out = Tensor<float>({1, 4, 99, 8}); }).find("rank 0: result.out is "),
      0);
  const Arguments<float> a;
  Tensor<float> q(a.q.shape()), k(a.k.shape()), v(a.v.shape()), other({1, 4, 9, 2});
  const auto call = [&](const std::optional<View<const float>>& grad_lse) {
    (void)backward(a.attention, a.q, a.k, a.v, a.result, a.grad_out, a.placement, a.scoring, {}, grad_lse,
                   GradientViews<float>{q, k, v, other});
  };
  EXPECT_EQ(agreed_message([&] { call(other); }).find("rank 0: grad_lse is [1, 4, 9, 2] where "), 0);
  EXPECT_EQ(agreed_message([&] { call({}); }).find("rank 0: dbias is [1, 4, 9, 2] where [1, 1, 0, 1]"), 0);
}

TEST(Arguments, NullPointers) {
  expect_refused([](auto& a) { a.nulls = true; }, "rank 0: v is a null pointer");
}

TEST(Arguments, PlacementsForOtherRanks) {
  const int size = placed(0).ranks();
  expect_refused_on_some(
      [&](auto& a) { a.placement.keys = Placement(PlacementKind::contiguous, 17, size + 1); },
      "the placement is not for the " + std::to_string(size) + (size == 1 ? " rank" : " ranks"));
}

TEST(Arguments, ScoringThatIsNoNumber) {
  expect_refused_on_some([](auto& a) { a.scoring.scale = not_a_number; }, "scale is nan");
  expect_refused_on_some([](auto& a) { a.scoring.scale = -infinite; }, "scale is -inf");
  expect_refused_on_some([](auto& a) { a.scoring.scale = 1e39; }, "scale is 1e+39");  // infinite in float
  expect_refused_on_some([](auto& a) { a.scoring.softcap = -1; }, "softcap is -1");
  expect_refused_on_some([](auto& a) { a.scoring.softcap = not_a_number; }, "softcap is nan");
  expect_refused_on_some([](auto& a) { a.scoring.softcap = 1e39; }, "softcap is 1e+39");
  expect_refused_on_some([](auto& a) { a.scoring.alibi_slopes[2] = not_a_number; },
                         "an ALiBi slope is not finite");
  expect_refused_on_some([](auto& a) { a.scoring.alibi_slopes.pop_back(); }, "3 ALiBi slopes for 4 heads");
  expect_refused_on_some([](auto& a) { a.scoring.mask.left = -1; }, "mask.left and mask.right");
  expect_refused_on_some([](auto& a) { a.scoring.mask.right = std::numeric_limits<Index>::max(); },
                         "mask.left and");
  expect_refused_on_some([](auto& a) { a.scoring.mask.offset = std::numeric_limits<Index>::min(); },
                         "mask.offset");
}

Mask with_sets(MaskSets::Sets sets) {
  Mask mask = Mask::causal();
  mask.sets = std::make_shared<const MaskSets>(std::move(sets));
  return mask;
}
Mask with_rows(std::vector<Interval> rows, int width) {
  Mask mask = Mask::causal();
  mask.sets = std::make_shared<const MaskRows>(std::move(rows), width);
  return mask;
}

TEST(Arguments, TheSetsOfAMask) {
  expect_refused_on_some([](auto& a) { a.scoring.mask = with_sets({.blocks = {{0, 18}}}); },
                         "blocks (a prefix is the first one): 0:18 is no interval begin:end of the 17 keys");
  expect_refused_on_some([](auto& a) { a.scoring.mask = with_rows({{0, 1}}, 1); },
                         "intervals: 1 of them, 1 for a query, and there are 13 queries");
  std::vector<Interval> rows(26, {3, 5});
  expect_refused_on_some([&](auto& a) { a.scoring.mask = with_rows(rows, 2); },
                         "intervals of query 0: 3:5 begins before 5");
}

/// A bias of all queries of the rank, or of more.
void give_bias(Arguments<float>& a, Index heads, Index more = 0) {
  a.bias = Tensor<float>({1, heads, a.q.shape().seq + more, 17});
}

TEST(Arguments, BiasSinksAndDropout) {
  expect_refused_on_some([](auto& a) { give_bias(a, 3); }, "bias is [");
  expect_refused_on_some([](auto& a) { give_bias(a, 4, 1); }, "bias is [");
  expect_refused_on_some([](auto& a) { a.scoring.sinks = {1, 2, 3}; }, "3 sinks for 4 heads");
  for (const double wrong : {not_a_number, infinite})
    expect_refused_on_some([&](auto& a) { a.scoring.sinks = {0, wrong, 0, 0}; }, "a sink is NaN or +inf");
  expect_refused_on_some([](auto& a) { a.scoring.dropout.probability = 1; }, "dropout is 1:");
  for (Index Dropout::* number : {&Dropout::layer, &Dropout::first_batch, &Dropout::first_head})
    expect_refused_on_some([&](auto& a) { a.scoring.dropout.*number = -1; },
                           "dropout.layer, first_batch and first_head are from 0 to 2^31 - 1");
}

TEST(Arguments, MoreThanThereCanBe) {
  expect_refused([](auto& a) { a.placement.queries = placed(Index{1} << 46U); }, "more than 2^48 elements");
  expect_refused([](auto& a) { a.placement.keys = placed(Index{1} << 42U); }, "at most 2^31 - 1");
}

TEST(Arguments, ProcessorsThatCannotBe) {
  expect_refused_on_some([](auto& a) { a.attention.processor = cores(0); }, "a rank has at least 1 thread");
  expect_refused_on_some([](auto& a) { a.attention.processor = cores(2); },
                         "more than 1 thread needs MPI_THREAD_FUNNELED");
  expect_refused_on_some(
      [](auto& a) { a.attention = {observed(a.attention.ranks, {}), observed(cores(2), {})}; },
      "more than 1 thread needs MPI_THREAD_FUNNELED");
  for (const Isa isa : {Isa::neon, Isa::generic, Isa::avx512})
    if (std::ranges::count(available_isas(), isa) == 0)
      expect_refused_on_some([&](auto& a) { a.attention.processor = cores(1, isa); },
                             "the instruction set is not available");
  EXPECT_THROW((void)observed(cores(), {nullptr}), InputError);
  Arguments<double> doubles;
  doubles.attention.processor = ring_attention::same_bits(256);
  EXPECT_THROW(doubles.forward(), AgreedError);
}

/// Its engines find no memory.
struct NoMemory : CpuDevice<float> {
  std::unique_ptr<Engine<float>> forward(const Scoring&, View<const float>, const TokenRanges&,
                                         View<const float>, const ExpectedKeys&) const override {
    throw std::bad_alloc();
  }
};

TEST(Arguments, WithoutMemoryForAnEngine) {
  Arguments<float> a;
  const int last = placed(0).ranks() - 1;
  if (rank_of_world() == last) a.attention.processor.floats = std::make_shared<NoMemory>();
  EXPECT_EQ(agreed_message([&] { a.forward(); }).find("rank " + std::to_string(last) + " is out of memory"),
            0);
}

TEST(Arguments, WithoutACommunicator) {
  EXPECT_THROW((void)mpi(MPI_COMM_NULL), InputError);
  Arguments<float> a;
  a.attention.ranks = nullptr;
  expect_input_error([&] { a.forward(); }, "Attention: ranks is null, give mpi(comm)");
  if (placed(0).ranks() == 1) return;
  MPI_Comm half = MPI_COMM_NULL, both = MPI_COMM_NULL;
  const int side = rank_of_world() == 0 ? 0 : 1;
  MPI_Comm_split(MPI_COMM_WORLD, side, 0, &half);
  MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, 1 - side, 0, &both);
  EXPECT_THROW((void)mpi(both), InputError);
  MPI_Comm_free(&both);
  MPI_Comm_free(&half);
}

// ---- different from rank 0 -----------------------------------------------------------------------------

/// Spoilt on the ranks from 1 on, where each by itself is right.
void expect_disagreement(const Spoil& spoil, const std::string& of_rank_0, const std::string& of_rank_1) {
  if (placed(0).ranks() == 1) return;
  expect_refused(spoil, "the ranks disagree: rank 0 has " + of_rank_0 + ", rank 1 has " + of_rank_1, 1);
}

Scoring packed(std::vector<Index> boundaries) {
  return {0.5, {.documents = std::make_shared<const Documents>(std::move(boundaries))}, alibi_slopes(4)};
}

TEST(Disagreement, OnTheScoring) {
  expect_disagreement([](auto& a) { a.scoring.scale = 0.25; }, "scale 0.5", "scale 0.25");
  expect_disagreement([](auto& a) { a.scoring.scale = std::nextafter(0.5, 1); }, "scale 0.5",
                      "scale 0.500000000000000");
  expect_disagreement([](auto& a) { a.scoring.softcap = 30; }, "softcap 0", "softcap 30");
  expect_disagreement([](auto& a) { a.scoring.mask.left = 3; }, "mask.left 2305843009213693951",
                      "mask.left 3");
  expect_disagreement([](auto& a) { a.scoring.mask.right = 1; }, "mask.right 0", "mask.right 1");
  expect_disagreement([](auto& a) { a.scoring.mask.offset = 0; }, "mask.offset 4", "mask.offset 0");
  expect_disagreement([](auto& a) { a.scoring.alibi_slopes.clear(); }, "4 ALiBi slopes", "0 ALiBi slopes");
  expect_disagreement([](auto& a) { a.scoring.alibi_slopes[3] = 2; }, "ALiBi slope 0.00390625",
                      "ALiBi slope 2");
}

TEST(Disagreement, OnTheDocuments) {
  const auto documents_of_rank = [](const std::vector<Index>& first, const std::vector<Index>& others) {
    return [=](auto& a) { a.scoring = packed(rank_of_world() == 0 ? first : others); };
  };
  if (placed(0).ranks() == 1) return;
  const std::string start = "the ranks disagree: rank 0 has ";
  expect_refused(documents_of_rank({0, 5, 17}, {0, 6, 17}),
                 start + "a document [0, 5), rank 1 has a document [0, 6)");
  expect_refused(documents_of_rank({0, 5}, {0, 5, 17}),
                 start + "no further document, rank 1 has a document [5, 17)");
  expect_disagreement(
      [](auto& a) { a.scoring.mask.documents = std::make_shared<const Documents>(std::vector<Index>{0}); },
      "no documents", "documents");
}

TEST(Disagreement, OnTheSetsOfAMask) {
  const auto of_rank = [](const Mask& first, const Mask& others) {
    return [=](auto& a) { a.scoring.mask = rank_of_world() == 0 ? first : others; };
  };
  if (placed(0).ranks() == 1) return;
  expect_refused(of_rank(with_sets({.sink_tokens = 2}), with_sets({.sink_tokens = 3})), "sink tokens 3");
  std::vector<Interval> rows(13, {3, 5}), others = rows;
  others.back().end = 6;
  expect_refused(of_rank(with_rows(rows, 1), with_rows(others, 1)), "rank 0 has 13 intervals, 1 for a query");
}

TEST(Disagreement, OnBiasSinksAndDropout) {
  expect_disagreement([](auto& a) { give_bias(a, 4); }, "no bias", "a bias of batch 1, heads 4, keys 17");
  expect_disagreement([](auto& a) { a.scoring.sinks = {0, 0, 0, 0}; }, "0 sinks", "4 sinks");
  if (placed(0).ranks() == 1) return;
  const Index other = rank_of_world() == 0 ? 0 : 1;
  const auto refused = [&](Dropout dropout, const std::string& said) {
    dropout.probability = 0.25;
    expect_refused([&](auto& a) { a.scoring.dropout = dropout; }, "rank 0 has dropout." + said);
  };
  refused({.seed = 3 + static_cast<std::uint64_t>(other)}, "seed 3");
  refused({.step = static_cast<std::uint64_t>(other)}, "step 0");
  refused({.layer = other}, "layer 0");
  refused({.first_batch = other}, "first_batch 0");
  refused({.first_head = other}, "first_head 0");
  expect_refused([&](auto& a) { a.scoring.sinks = {0, 0, 0, 2 - 0.5 * static_cast<double>(other)}; },
                 "rank 0 has a sink 2");
}

TEST(Disagreement, EmptyDocumentsChangeNothing) {
  Arguments<float> arguments;
  arguments.scoring =
      packed(rank_of_world() == 0 ? std::vector<Index>{0, 5, 17} : std::vector<Index>{0, 5, 5, 17});
  EXPECT_NO_THROW(arguments.forward());
}

TEST(Disagreement, OnTheArrays) {
  const auto shaped = [](Arguments<float>& a, Index batch, Index heads, Index kv_heads, Index dim) {
    a.q = Tensor<float>({batch, heads, a.q.shape().seq, dim}, 1);
    a.k = Tensor<float>({batch, kv_heads, a.k.shape().seq, dim}, 1);
    a.v = a.k.clone();
    a.grad_out = a.q.clone();
    a.result = {a.q.clone(), Tensor<float>(a.q.shape().per_row())};
    a.scoring.alibi_slopes = alibi_slopes(heads);
  };
  expect_disagreement([&](auto& a) { shaped(a, 2, 4, 2, 8); }, "batch 1", "batch 2");
  expect_disagreement([&](auto& a) { shaped(a, 1, 8, 2, 8); }, "heads 4", "heads 8");
  expect_disagreement([&](auto& a) { shaped(a, 1, 4, 4, 8); }, "KV heads 2", "KV heads 4");
  expect_disagreement([&](auto& a) { shaped(a, 1, 4, 2, 16); }, "dim 8", "dim 16");
  expect_disagreement(
      [](auto& a) {
        a.v = Tensor<float>(a.v.shape().with_dim(5), 1);
        a.grad_out = Tensor<float>(a.q.shape().with_dim(5), 1);
        a.result.out = a.grad_out.clone();
      },
      "dim of v 8", "dim of v 5");
}

TEST(Disagreement, OnThePlacementAndTheTiles) {
  // On rank 1 of two and more, 13 and 14 tokens can give the same shard, and so can two kinds.
  const auto moved = [](Arguments<float>& a, const Placement& queries, const Placement& keys) {
    a.placement = {queries, keys};
    a.q = Tensor<float>({1, 4, queries.tokens(rank_of_world()), 8}, 1);
    a.k = Tensor<float>({1, 2, keys.tokens(rank_of_world()), 8}, 1);
    a.v = a.k.clone();
    a.grad_out = a.q.clone();
    a.result = {a.q.clone(), Tensor<float>(a.q.shape().per_row())};
  };
  expect_disagreement([&](auto& a) { moved(a, placed(14), placed(17)); }, "queries 13 contiguous",
                      "queries 14 contiguous");
  expect_disagreement([&](auto& a) { moved(a, placed(13), placed(17, PlacementKind::striped)); },
                      "keys 17 contiguous", "keys 17 striped");
  // Balanced placements differ by the ranges that another search finds.
  const int ranks = placed(0).ranks();
  const auto dealt = [&](Index seq, int first) {
    std::vector<TokenRanges> shards(static_cast<std::size_t>(ranks));
    shards[static_cast<std::size_t>(first)].push_back({0, 1, 2});
    shards.back().push_back({2, 1, seq - 2});
    return Placement(std::move(shards));
  };
  const auto hash = [](const Placement& placement) {
    return "queries in ranges of hash " + std::to_string(placement.hash());
  };
  if (ranks > 1) {
    const auto of_rank = [&](Arguments<float>& a) {
      const Placement queries = dealt(13, rank_of_world() == 0 ? 0 : ranks - 1);
      moved(a, queries, placed(17));
    };
    Arguments<float> arguments;
    of_rank(arguments);
    EXPECT_EQ(agreed_message([&] { arguments.forward(); }), "the ranks disagree: rank 0 has " +
                                                                hash(dealt(13, 0)) + ", rank 1 has " +
                                                                hash(dealt(13, ranks - 1)));
    moved(arguments, placed(13), dealt(17, rank_of_world() == 0 ? 0 : ranks - 1));
    EXPECT_EQ(agreed_message([&] { arguments.forward(); })
                  .find("the ranks disagree: rank 0 has keys in ranges of hash " +
                        std::to_string(dealt(17, 0).hash()) + ", rank 1"),
              0);
    // Placements of as many pieces differ by where these begin.
    const auto cut = [&](Index at) { return Placement(PlacementKind::contiguous, {0, at, 13}, ranks); };
    moved(arguments, cut(rank_of_world() == 0 ? 3 : 4), placed(17));
    EXPECT_EQ(agreed_message([&] { arguments.forward(); }),
              "the ranks disagree: rank 0 has " + hash(cut(3)) + ", rank 1 has " + hash(cut(4)));
  }
  std::vector<Index> cuts{0};  // a piece for each rank: the same shards
  for (int rank = 0; rank < ranks; ++rank) cuts.push_back(placed(17).ranges(rank).back().end());
  expect_disagreement(
      [&](auto& a) { moved(a, placed(13), Placement(PlacementKind::contiguous, cuts, ranks)); },
      "pieces of the keys 17", "pieces of the keys " + std::to_string(ranks));
  expect_disagreement([](auto& a) { a.attention.processor = ring_attention::same_bits(1); },
                      "computing: the library's kernels", "computing: the same bits in tiles of 1");
}

TEST(Disagreement, OnTheGradientOfLse) {
  if (placed(0).ranks() == 1) return;
  const Arguments<float> a;
  const Tensor<float> grad_lse(a.result.lse.shape(), 1);
  std::optional<View<const float>> given;
  if (rank_of_world() > 0) given = grad_lse;
  EXPECT_EQ(agreed_message([&] {
              (void)backward(a.attention, a.q, a.k, a.v, a.result, a.grad_out, a.placement, a.scoring, {},
                             given);
            }),
            "the ranks disagree: rank 0 has gradient of lse none, rank 1 has gradient of lse given");
}

TEST(Disagreement, OnTheTypeAndTheCall) {
  if (placed(0).ranks() == 1) return;
  const bool first = rank_of_world() == 0;
  const Arguments<float> floats;
  Arguments<double> doubles;
  doubles.attention = floats.attention;
  EXPECT_EQ(agreed_message([&] { first ? floats.forward() : doubles.forward(); }),
            "the ranks disagree: rank 0 has forward of 4-byte numbers, rank 1 has forward of 8-byte numbers");
  EXPECT_EQ(
      agreed_message([&] { first ? floats.forward() : floats.backward(); }),
      "the ranks disagree: rank 0 has forward of 4-byte numbers, rank 1 has backward of 4-byte numbers");
}

}  // namespace
}  // namespace ring_attention::test
