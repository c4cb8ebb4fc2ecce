// MPI's errors as exceptions, agreement on bad input, and the reductions.

#include "ring_attention/mpi/agreement.hpp"
#include "ring_attention/mpi/collectives.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <system_error>

#include "support/thrown_message.hpp"

namespace ring_attention::test {
namespace {

class Comm : public testing::Test {
 protected:
  Communicator comm{MPI_COMM_WORLD};
};

TEST_F(Comm, KnowsItsPlace) {
  int rank = -1, size = -1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  EXPECT_EQ(comm.rank(), rank);
  EXPECT_EQ(comm.size(), size);
}

TEST_F(Comm, IsADuplicate) {
  int relation = MPI_UNEQUAL;
  MPI_Comm_compare(comm.handle(), MPI_COMM_WORLD, &relation);
  EXPECT_EQ(relation, MPI_CONGRUENT) << "the same ranks, other messages";
}

// ---- errors --------------------------------------------------------------------------------------------

TEST_F(Comm, AnErrorInsideMpiIsAnExceptionWithItsTextAndPlace) {
  const std::string message = thrown_message([&] {
    check_mpi(MPI_Send(nullptr, 0, MPI_BYTE, comm.size(), 0, comm.handle()));  // there is no such rank
  });
  EXPECT_NE(message.find("MPI: "), std::string::npos) << message;
  EXPECT_NE(message.find("nvalid rank"), std::string::npos) << message;
  EXPECT_NE(message.find("[communicator_test.cpp:"), std::string::npos) << message;
}

TEST_F(Comm, SuccessIsNoError) { EXPECT_NO_THROW(check_mpi(MPI_SUCCESS)); }

// ---- agreement -----------------------------------------------------------------------------------------

/// The message of the AgreedError that this rank gets; empty when it gets none.
template <class Body>
std::string agreed(Body body) {
  try {
    body();
  } catch (const AgreedError& error) {
    return error.what();
  }
  return "";
}

TEST_F(Comm, AgreementOnGoodInputIsSilent) {
  EXPECT_EQ(agreed([&] { agree(comm, [] {}); }), "");
}

TEST_F(Comm, TheBadInputOfOneRankIsThrownOnAll) {
  for (int culprit = 0; culprit < comm.size(); ++culprit) {
    const std::string message = "q.npy of rank " + std::to_string(culprit);
    EXPECT_EQ(agreed([&] {
                agree(comm, [&] {
                  if (comm.rank() == culprit) throw InputError(message);
                });
              }),
              message);
  }
}

TEST_F(Comm, ARankWithoutMemoryIsNamedOnAll) {
  const int last = comm.size() - 1;
  const std::string message = agreed([&] {
    agree(comm, [&] {
      if (comm.rank() == last) throw std::bad_alloc();
    });
  });
  EXPECT_TRUE(message.starts_with("rank " + std::to_string(last) + " is out of memory")) << message;
}

TEST_F(Comm, AFileThatCannotBeUsedIsNamed) {
  const auto denied = std::make_error_code(std::errc::permission_denied);
  const std::filesystem::filesystem_error error("rename", "from.npy", "to.npy", denied);
  EXPECT_EQ(agreed([&] { agree(comm, [&] { throw error; }); }),
            "from.npy: " + denied.message() + ": check the path");
}

TEST_F(Comm, TheErrorOfTheLowestRankIsThrownOnAll) {
  const std::string message = agreed([&] {
    agree(comm, [&] {
      if (comm.rank() >= comm.size() / 2) throw InputError("from rank " + std::to_string(comm.rank()));
    });
  });
  EXPECT_EQ(message, "from rank " + std::to_string(comm.size() / 2));
}

TEST_F(Comm, AMessageWithoutTextIsStillAnError) {
  bool thrown = false;
  try {
    agree(comm, [&] {
      if (comm.rank() == comm.size() - 1) throw InputError("");
    });
  } catch (const AgreedError&) {
    thrown = true;
  }
  EXPECT_TRUE(thrown);
}

TEST_F(Comm, ALongMessageArrivesWhole) {
  const std::string message(100000, 'x');
  EXPECT_EQ(agreed([&] { agree(comm, [&] { throw InputError(message); }); }), message);
}

TEST_F(Comm, SameValuesAreTheSame) {
  EXPECT_EQ(agreed([&] { require_same(comm, "seq", Index{1} << 40); }), "");
}

TEST_F(Comm, OtherValuesAreNamed) {
  const int last = comm.size() - 1;
  const std::string message = agreed([&] { require_same(comm, "seq", comm.rank() == last ? 7 : 5); });
  if (comm.size() == 1) {
    EXPECT_EQ(message, "");
    return;
  }
  for (const std::string& part :
       {std::string("seq"), std::string("rank 0 has 5"), "rank " + std::to_string(last) + " has 7"})
    EXPECT_NE(message.find(part), std::string::npos) << message;
}

TEST_F(Comm, ValuesThatDifferPast32BitsDiffer) {
  const Index value = comm.rank() == 0 ? 1 : (Index{1} << 32) + 1;
  EXPECT_EQ(agreed([&] { require_same(comm, "seq", value); }).empty(), comm.size() == 1);
}

TEST_F(Comm, TextsAreComparedWhole) {
  EXPECT_EQ(agreed([&] { require_same(comm, "dtype", std::string("<f4")); }), "");
  EXPECT_EQ(agreed([&] { require_same(comm, "documents", std::string()); }), "");
  // Of another length, of the same length, empty on rank 0, empty on the others.
  for (const auto& [first, others] : {std::pair<std::string, std::string>{"<f4", "<f4 "},
                                      {"zigzag", "zigzig"},
                                      {"", "zigzag"},
                                      {"zigzag", ""}}) {
    const std::string message =
        agreed([&] { require_same(comm, "placement", comm.rank() == 0 ? first : others); });
    EXPECT_EQ(message, comm.size() == 1 ? ""
                                        : "the ranks disagree on placement: rank 0 has " + first +
                                              ", rank 1 has " + others);
  }
}

TEST_F(Comm, AWorldOfAnotherSizeThanPromisedIsBadInput) {
  EXPECT_EQ(agreed([&] { require_world_size(comm, comm.size()); }), "");
  EXPECT_EQ(agreed([&] { require_world_size(comm, 0); }), "") << "no promise";
  const std::string message = agreed([&] { require_world_size(comm, comm.size() + 1); });
  EXPECT_NE(message.find("there are " + std::to_string(comm.size())), std::string::npos) << message;
  EXPECT_NE(message.find("promises " + std::to_string(comm.size() + 1)), std::string::npos) << message;
}

// ---- gather, broadcast, sum -----------------------------------------------------------------------------

TEST_F(Comm, AGatherIsInTheOrderOfTheRanks) {
  struct Report {
    int rank;
    double seconds;
    Index bytes;
  };
  const auto all = all_gather(comm, Report{comm.rank(), 0.5 * comm.rank(), (Index{1} << 40) + comm.rank()});
  ASSERT_EQ(all.size(), static_cast<std::size_t>(comm.size()));
  for (int rank = 0; rank < comm.size(); ++rank) {
    const Report& report = all[static_cast<std::size_t>(rank)];
    EXPECT_EQ(report.rank, rank);
    EXPECT_EQ(report.seconds, 0.5 * rank);
    EXPECT_EQ(report.bytes, (Index{1} << 40) + rank);
  }
}

TEST_F(Comm, ABroadcastReplacesWhatTheOthersHave) {
  for (const std::size_t length : {0U, 1U, 100'000U}) {
    const std::string want(length, 'x');
    std::string text = comm.rank() == 0 ? want : "of another length";
    broadcast(comm, text);
    EXPECT_EQ(text, want);
  }
  for (const std::vector<Index>& want : {std::vector<Index>{}, {0}, {0, 5, Index{1} << 40, -1}}) {
    std::vector<Index> integers = comm.rank() == 0 ? want : std::vector<Index>{7, 7};
    broadcast(comm, integers);
    EXPECT_EQ(integers, want);
  }
}

TEST_F(Comm, SumsElementByElement) {
  const auto n = static_cast<double>(comm.size());
  std::vector<double> values{1, static_cast<double>(comm.rank()), comm.rank() == 0 ? 0.25 : 0};
  sum_over_ranks(comm, values);
  EXPECT_EQ(values, (std::vector<double>{n, n * (n - 1) / 2, 0.25}));
  sum_over_ranks(comm, std::span<double>());

  double wrong[] = {comm.rank() == comm.size() - 1 ? std::numeric_limits<double>::quiet_NaN() : 1.0, 2};
  sum_over_ranks(comm, wrong);
  EXPECT_TRUE(std::isnan(wrong[0])) << "on every rank";
  EXPECT_EQ(wrong[1], 2 * n);
}

// ---- reductions ----------------------------------------------------------------------------------------

TEST_F(Comm, Reductions) {
  const Index n = comm.size();
  EXPECT_EQ(max_over_ranks(comm, comm.rank() - 0.5), static_cast<double>(n) - 1.5);
  EXPECT_EQ(max_over_ranks(comm, -1.0 - comm.rank()), -1.0);
  EXPECT_EQ(min_over_ranks(comm, 10 + comm.rank()), 10);
  EXPECT_EQ(sum_over_ranks(comm, (Index{1} << 40) + comm.rank()), n * (Index{1} << 40) + n * (n - 1) / 2);
  EXPECT_TRUE(all_of_ranks(comm, true));
  EXPECT_FALSE(all_of_ranks(comm, comm.rank() != n - 1));
}

// An error that is NaN on one rank must not look small.
TEST_F(Comm, TheMaximumWithANaNIsNaN) {
  for (int culprit = 0; culprit < comm.size(); ++culprit) {
    const double value = comm.rank() == culprit ? std::numeric_limits<double>::quiet_NaN() : 1.0;
    EXPECT_TRUE(std::isnan(max_over_ranks(comm, value))) << "NaN on rank " << culprit;
  }
}

TEST_F(Comm, TheMaximumMayBeInfinite) {
  EXPECT_EQ(max_over_ranks(comm, std::numeric_limits<double>::infinity()),
            std::numeric_limits<double>::infinity());
}

}  // namespace
}  // namespace ring_attention::test
