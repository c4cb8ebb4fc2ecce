// Lesson 04: the mistakes that the judge of its exercise names.
#pragma once

#include LESSON_IDEA

#include "common/named.hpp"

namespace ring_attention::lesson {

/// Each rank has one state; the numbers of all ranks are compared. Collective.
inline void name_mistakes(const Lesson& lesson, const Communicator& comm) {
  const int ranks = comm.size();
  const auto local = [](int rank) {
    return State{static_cast<float>(rank * 7 % 5), 1 + 0.5F * static_cast<float>(rank)};
  };
  const Chained result = chain(local(comm.rank()), comm);
  const float own[]{result.passed.m, result.passed.l, result.whole.m, result.whole.l};
  std::vector<float> of_all(4 * static_cast<std::size_t>(ranks));
  check_mpi(MPI_Allgather(own, 4, MPI_FLOAT, of_all.data(), 4, MPI_FLOAT, comm.handle()));

  using Update = State (*)(const State&, const State&);
  const auto written = [&](auto passed, auto whole_of) {
    std::vector<double> all;
    for (int rank = 0; rank < ranks; ++rank) {
      const State own_part = passed(rank), whole = passed(whole_of(rank));
      all.insert(all.end(), {own_part.m, own_part.l, whole.m, whole.l});
    }
    return all;
  };
  const auto prefix = [&](int first,
                          Update update) {  // of ranks first .. rank; a rank before `first` has its own
    return [=](int rank) {
      State state = rank < first ? local(rank) : update({}, local(first));
      for (int next = first + 1; next <= rank; ++next) state = update(state, local(next));
      return state;
    };
  };
  const auto right = prefix(0, merge<float>);
  const auto of_last = [&](int) { return ranks - 1; };
  const auto own_only = [&](int rank) { return local(rank); };
  const auto last_two = [&](int rank) { return rank == 0 ? local(0) : merge(local(rank - 1), local(rank)); };
  const auto without_l = [&](int rank) {
    return rank == 0 ? local(0) : merge(State{right(rank - 1).m, 0}, local(rank));
  };
  const auto added =
      prefix(0, [](const State& a, const State& b) { return State{std::max(a.m, b.m), a.l + b.l}; });
  (void)names_mistake(
      lesson, "chain", {of_all.begin(), of_all.end()}, written(right, of_last),
      {{"what a rank receives is not merged: it keeps its own state", written(own_only, of_last)},
       {"a rank sends its own state, not the merged one", written(last_two, of_last)},
       {"rank 1 does not receive", written(prefix(1, merge<float>), of_last)},
       {"a message is one number: l stays behind", written(without_l, of_last)},
       {"l is added without the factor e^{m_a - m}", written(added, of_last)},
       {"the root of the broadcast is rank 0, not the last rank", written(right, [](int) { return 0; })},
       {"no broadcast: the ranks before the last have seen a part of the row",
        written(right, [](int rank) { return rank; })}});
}

}  // namespace ring_attention::lesson
