// GoogleTest's main for programs that run on several MPI ranks.
//
// Rank 0 prints the report; the other ranks print their failures at once, after their number.
// A test has passed when it passed on every rank. `--np=N` is the number of ranks that must be there: a
// launcher that does not fit the MPI library starts N worlds of one rank, which would pass.
// A test that takes too long is named and ends the job: most often one rank failed and its peers
// wait for it.

#include <gtest/gtest.h>
#include <mpi.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "ring_attention/mpi/end.hpp"
#include "support/select_source.hpp"

namespace {

int this_rank = 0;
std::string running;         // what the watchdog watches
char out_of_time_line[512];  // what it prints: made beforehand, for a signal handler only writes
std::size_t out_of_time_length = 0;

extern "C" void out_of_time(int) {
  [[maybe_unused]] const auto written = write(STDERR_FILENO, out_of_time_line, out_of_time_length);
  ring_attention::end_without_mpi();
}

// Gives `what` 20 seconds from now (RING_ATTENTION_WATCHDOG_SECONDS under slow tools).
void watch(const std::string& what) {
  const char* seconds = std::getenv("RING_ATTENTION_WATCHDOG_SECONDS");
  alarm(0);
  running = what;
  std::snprintf(out_of_time_line, sizeof out_of_time_line, "[rank %d] out of time: %s\n", this_rank,
                what.c_str());
  out_of_time_length = std::strlen(out_of_time_line);
  alarm(seconds != nullptr ? static_cast<unsigned>(std::atoi(seconds)) : 20);
}

// True when `mine` holds on at least one rank. Collective.
bool on_any_rank(bool mine) {
  int flag = mine ? 1 : 0;
  MPI_Allreduce(MPI_IN_PLACE, &flag, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  return flag != 0;
}

class MpiListener : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo& test) override {
    watch(std::string(test.test_suite_name()) + "." + test.name());
  }

  void OnTestPartResult(const testing::TestPartResult& part) override {
    if (!part.failed() || this_rank == 0) return;  // rank 0 has GoogleTest's own printer
    std::fprintf(stderr, "[rank %d] %s:%d: in %s: %s\n", this_rank,
                 part.file_name() != nullptr ? part.file_name() : "?", part.line_number(), running.c_str(),
                 part.message());
  }

  // Runs before the printer's, so that the report of rank 0 shows the verdict of all ranks.
  void OnTestEnd(const testing::TestInfo& test) override {
    const bool failed_here = test.result()->Failed();
    const bool failed = on_any_rank(failed_here);
    if (failed && !failed_here && this_rank == 0) ADD_FAILURE() << "failed on another rank";
  }
};

int run(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);  // takes out its own flags

  int ranks = 0;
  int ranks_promised = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  for (int i = 1; i < argc; ++i) {
    if (std::strncmp(argv[i], "--np=", 5) == 0) ranks_promised = std::atoi(argv[i] + 5);
  }
  if (ranks != ranks_promised) {
    std::fprintf(stderr, "[rank %d] --np=%d was promised, but there are %d ranks\n", this_rank,
                 ranks_promised, ranks);
    return 2;
  }
  if (!ring_attention::test::select_source(argc, argv)) return 2;

  // All ranks run the same tests in the same order.
  int seed = testing::GTEST_FLAG(random_seed) != 0 ? testing::GTEST_FLAG(random_seed) : 1;
  MPI_Bcast(&seed, 1, MPI_INT, 0, MPI_COMM_WORLD);
  testing::GTEST_FLAG(random_seed) = seed;

  auto& listeners = testing::UnitTest::GetInstance()->listeners();
  if (this_rank != 0) {
    delete listeners.Release(listeners.default_result_printer());
    delete listeners.Release(listeners.default_xml_generator());  // also the JSON one
  }
  listeners.Append(new MpiListener);

  bool failed = RUN_ALL_TESTS() != 0;
  if (testing::UnitTest::GetInstance()->test_to_run_count() == 0) {
    std::fprintf(stderr, "[rank %d] no test was run\n", this_rank);
    failed = true;
  }
  return on_any_rank(failed) ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGALRM, out_of_time);
  watch("MPI_Init");
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &this_rank);
  watch("before the first test");
  const int status = run(argc, argv);
  watch("MPI_Finalize");
  MPI_Finalize();
  return status;
}
