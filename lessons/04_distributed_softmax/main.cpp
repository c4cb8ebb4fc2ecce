// Lesson 04: distributed softmax. The one new idea is chain() below: (m, l) go down the ranks and come back.
#include <array>
#include <bit>

#include "common/lesson.hpp"
#include "deadlock.hpp"
#include "ring_attention/attention/softmax.hpp"
#include "ring_attention/core/eigen.hpp"
#include "ring_attention/core/random.hpp"
#include "ring_attention/core/tensor.hpp"
#include "ring_attention/ring/placement.hpp"

using namespace ring_attention;

namespace {

using State = SoftmaxState<float>;  // m = max x, l = sum e^{x - m}
static_assert(sizeof(State) == 2 * sizeof(float), "a message is two floats: m, l");

struct Rules {    // what a mutant replaces
  State start{};  // (-inf, 0): no score seen
  State (*update)(const State&, const State&) = merge<float>;
  bool broadcast = true;
};

struct Chained {
  State passed;  // covers the scores of ranks 0 .. r
  State whole;   // covers the whole row
  Index messages = 0;
};

// ---- The idea ------------------------------------------------------------------------------------------
// Each rank holds some scores of one row. Two numbers travel; the scores stay.
Chained chain(const State& local, const Communicator& comm, const Rules& rules = {}) {
  const int rank = comm.rank(), last = comm.size() - 1;
  Chained result;
  State state = rules.start;
  if (rank > 0) check_mpi(MPI_Recv(&state, 2, MPI_FLOAT, rank - 1, 0, comm.handle(), MPI_STATUS_IGNORE));
  state = rules.update(state, local);
  if (rank < last) {
    check_mpi(MPI_Send(&state, 2, MPI_FLOAT, rank + 1, 0, comm.handle()));
    ++result.messages;
  }
  result.passed = state;
  if (rules.broadcast) check_mpi(MPI_Bcast(&state, 2, MPI_FLOAT, last, comm.handle()));
  result.whole = state;
  return result;
}
// --------------------------------------------------------------------------------------------------------

// The same state by two all-reduces, which MPI runs as trees: the maximum, then the rescaled sums.
State all_reduce(State state, const Communicator& comm) {
  const float own = state.m;
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, &state.m, 1, MPI_FLOAT, MPI_MAX, comm.handle()));
  state.l *= rescale(own, state.m);
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, &state.l, 1, MPI_FLOAT, MPI_SUM, comm.handle()));
  return state;
}

// Scores of a seeded row, near -10200 and a few of them spiked: softmax does not care where its scores stand.
Tensor<float> scores(const Lesson& lesson, Index seq, const TokenRanges& ranges) {
  Tensor<float> x({1, 1, count(ranges), 1});
  fill_random(x.view(), {.seed = lesson.seed(), .spike_every = 100}, {1, 1, seq, 1}, ranges);
  for (float& score : x.view().elements()) score -= 10200;
  return x;
}

State state_of(const Tensor<float>& x) { return online_state(x.view().elements()); }

Tensor<float> normalised(const Tensor<float>& x, const State& state) {
  Tensor<float> p(x.shape());
  normalise(x.view().elements(), state, p.view().elements());
  return p;
}

double sum_over_row(const Tensor<float>& p, const Communicator& comm) {
  double sum = matrix(p.view(), 0, 0).cast<double>().sum();
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_DOUBLE, MPI_SUM, comm.handle()));
  return sum;
}

// The oracle: what a dense softmax of the whole row, in double, gives at `ranges`.
Tensor<double> dense_softmax(const Tensor<float>& row, const TokenRanges& ranges) {
  const Vector<double> x = matrix(row.view(), 0, 0).cast<double>();
  const Vector<double> e = (x.array() - x.maxCoeff()).exp();
  Tensor<double> part({1, 1, count(ranges), 1});
  Index i = 0;
  for (const Index position : positions(ranges)) part.data()[i++] = e[position] / e.sum();
  return part;
}

void show_failures(Lesson& lesson, const Communicator& comm, const Tensor<float>& x) {
  const double sum = sum_over_row(normalised(x, state_of(x)), comm);
  const State lost = chain(state_of(x), comm, {.start = {-1e4F, 0}}).whole;
  lesson.say(format("  each rank normalises with its own (m, l): the row sums to %.4f, not to 1", sum));
  lesson.say(format("  started at m = -1e4, not -inf, the chain ends at m = %.0f, l = %g", lost.m, lost.l));
  lesson.say(format("  (e^{-200} is 0 in float), and then e^{x - m} / l = 0 / 0 = %f", std::abs(0 / lost.l)));
  lesson.record("sum_without_messages", sum);
  lesson.record("l_finite_start", lost.l);
}

void show_chain(Lesson& lesson, const Communicator& comm, Index tokens, const State& own, const State& upto) {
  constexpr std::array names{"tokens", "m_own", "l_own", "m_passed", "l_passed"};
  const std::array mine{static_cast<double>(tokens), 1. * own.m, 1. * own.l, 1. * upto.m, 1. * upto.l};
  Table table({"rank", "tokens", "own m", "own l", "m passed on", "l passed on"});
  std::array<std::vector<double>, names.size()> figures;
  for (int rank = 0; rank < comm.size(); ++rank) {
    auto row = mine;
    check_mpi(MPI_Bcast(row.data(), names.size(), MPI_DOUBLE, rank, comm.handle()));
    table.row({format("%d", rank), format("%.0f", row[0]), format("%.4f", row[1]), format("%.4f", row[2]),
               format("%.4f", row[3]), format("%.4f", row[4])});
    for (std::size_t i = 0; i < names.size(); ++i) figures[i].push_back(row[i]);
  }
  lesson.print(table);
  for (std::size_t i = 0; i < names.size(); ++i) lesson.record(names[i], figures[i]);
}

// Seconds a time, the mean of 10 on the slowest rank.
double measure(const Communicator& comm, const auto& body) {
  check_mpi(MPI_Barrier(comm.handle()));
  const double begin = MPI_Wtime();
  for (int i = 0; i < 10; ++i) body();
  return max_over_ranks(comm, (MPI_Wtime() - begin) / 10);
}

void show_cost(Lesson& lesson, const Communicator& comm, const State& own, Index messages) {
  const Index sent = sum_over_ranks(comm, messages);
  const int hops = comm.size() - 1;
  const int depth = static_cast<int>(std::ceil(std::log2(comm.size())));
  lesson.heading("The cost");
  lesson.check("messages of 8 bytes down the chain are N - 1", sent == hops, std::to_string(sent));
  const double chained = measure(comm, [&] { chain(own, comm); });
  const double reduced = measure(comm, [&] { all_reduce(own, comm); });
  Table table({"way", "messages one after another", "here", "measured"});
  table.row({"the chain", "N - 1 + ceil(log2 N)", std::to_string(hops + depth), human_seconds(chained)});
  table.row({"two all-reduces", "2 ceil(log2 N)", std::to_string(2 * depth), human_seconds(reduced)});
  lesson.print(table);
  lesson.record("messages", sent);
  lesson.record("bytes", sent * static_cast<Index>(sizeof(State)));
  lesson.record("chain_seconds", chained);
  lesson.record("all_reduce_seconds", reduced);
}

int softmax_lesson(int argc, char** argv, const Communicator& comm) {
  Lesson lesson(
      "04", "distributed_softmax",
      "One row of scores lies in pieces on the ranks. Two numbers, (m, l), passed down the ranks and\n"
      "broadcast back, are all that a rank needs to normalise its own piece.",
      &comm);
  Index seq = 1003;
  lesson.options().option("--seq", seq, "Scores S in the row; any number, also fewer than ranks");
  lesson.offer_mutants({{"finite-start", "start at m = -1e4 instead of -inf"},
                        {"forgot-rescale", "add l without moving it to the new maximum"},
                        {"no-broadcast", "normalise with what the ranks before have seen"},
                        {"small-messages", "look for the deadlock with up to 1 KiB only"}});
  if (!lesson.parse(argc, argv)) return 0;
  Rules rules;
  if (lesson.mutant("finite-start")) rules.start.m = -1e4F;
  if (lesson.mutant("forgot-rescale"))
    rules.update = [](const State& a, const State& b) { return State{std::max(a.m, b.m), a.l + b.l}; };
  rules.broadcast = !lesson.mutant("no-broadcast");

  const Placement placement(PlacementKind::contiguous, seq, comm.size());
  const TokenRanges ranges = placement.ranges(comm.rank());
  const Tensor<float> x = scores(lesson, seq, ranges);
  const State own = state_of(x);
  lesson.heading("The failures: no messages, and a finite start");
  show_failures(lesson, comm, x);

  lesson.heading("The chain, spelled out");
  const Chained result = chain(own, comm, rules);
  show_chain(lesson, comm, placement.tokens(comm.rank()), own, result.passed);

  lesson.heading("The agreement");
  State merged;
  for (int rank = 0; rank < comm.size(); ++rank)
    merged = merge(merged, state_of(scores(lesson, seq, placement.ranges(rank))));
  lesson.check("bit for bit the states merged in rank order by one process",
               std::bit_cast<std::uint64_t>(result.whole) == std::bit_cast<std::uint64_t>(merged));
  const Tensor<float> p = normalised(x, result.whole);
  // x - m is exact this near to m; l is a running sum of S terms, which loses eps/2 a term at most.
  const double eps = std::numeric_limits<float>::epsilon() * static_cast<double>(8 + seq);
  lesson.check("p agrees with a dense softmax in double",
               compare(p, dense_softmax(scores(lesson, seq, whole(seq)), ranges), {.relative = eps}));
  const double sum = sum_over_row(p, comm);
  lesson.check("p sums to 1 over all ranks", std::abs(sum - 1) <= eps, format("%.6f", sum));
  const State reduced = all_reduce(own, comm);
  lesson.check("the all-reduces agree",
               reduced.m == result.whole.m && std::abs(reduced.l - result.whole.l) <= eps * result.whole.l);
  show_deadlock(lesson, comm, lesson.mutant("small-messages") ? 1024 : 64 << 20);
  show_cost(lesson, comm, own, result.messages);
  return lesson.finish(format("%d ranks, %d scores: one softmax by N - 1 = %d messages of 8 bytes",
                              comm.size(), static_cast<int>(seq), comm.size() - 1));
}

}  // namespace

int main(int argc, char** argv) {
  return mpi_main(argc, argv, [&](const Communicator& comm) { return softmax_lesson(argc, argv, comm); });
}
