// One rank of several with too little memory: forward and backward are an Error on every rank that names it, nothing waits,
// and the next call is right.

#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>

#include "ring_attention/core/compare.hpp"
#include "ring_attention/partitions.hpp"
#include "ring_attention/ring_attention.hpp"
#include "support/input_error.hpp"

namespace ring_attention::test {
namespace {

constexpr Index mib = 1 << 20;

/// Bytes of address space that this process has; 0 where the system does not say.
Index address_space() {
  Index pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * sysconf(_SC_PAGESIZE);
}

/// Until its destructor this process can have `more` bytes, and no more.
class MemoryLimit {
 public:
  explicit MemoryLimit(Index more) {
    getrlimit(RLIMIT_AS, &before_);
    const rlimit limit{static_cast<rlim_t>(address_space() + more), before_.rlim_max};
    setrlimit(RLIMIT_AS, &limit);
  }
  ~MemoryLimit() { setrlimit(RLIMIT_AS, &before_); }
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;

 private:
  rlimit before_{};
};

Ring ring_of_world() {
  Ring ring;
  MPI_Comm_rank(MPI_COMM_WORLD, &ring.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ring.size);
  return ring;
}

/// K and V of 32 MiB on each rank, for 8 queries a rank: K,V in messages are most of what a call needs.
struct CallOfALargeRing {
  explicit CallOfALargeRing(const std::string& partition)
      : attention{mpi(MPI_COMM_WORLD), cores(), division_named(partition)} {}

  [[nodiscard]] Placement placed(Index tokens_of_a_rank) const {
    return {PlacementKind::contiguous, tokens_of_a_rank * ranks, ranks};
  }
  [[nodiscard]] Tensor<float> array(const Placement& tokens) const {
    return Tensor<float>({1, 12, tokens.tokens(rank), 64}, 1);
  }

  int rank = ring_of_world().rank, ranks = ring_of_world().size;
  Attention attention;
  Placements placement{placed(8), placed(32 * mib / (Index{12} * 64 * 4))};
  Tensor<float> q = array(placement.queries), k = array(placement.keys);
  [[nodiscard]] AttentionResult<float> attend() const {
    return forward(attention, q, k, k, placement, {.scale = 0.125});
  }
  void differentiate(const AttentionResult<float>& result) const {
    (void)backward(attention, q, k, k, result, q, placement, {.scale = 0.125});
  }
};

class TooLittleMemory : public testing::TestWithParam<const char*> {};

TEST_P(TooLittleMemory, OnTheLastRankIsAnErrorOnEveryRank) {
  if (address_space() == 0 || address_space() > (Index{1} << 40))
    GTEST_SKIP() << "no limit of memory here: no /proc, or a sanitizer";
  mallopt(M_MMAP_THRESHOLD, mib);  // what is freed goes back at once, and is not there for the next call
  const CallOfALargeRing call(GetParam());
  const AttentionResult<float> before = call.attend();
  const std::string culprit = "rank " + std::to_string(call.ranks - 1);
  const auto expect_an_error = [&](const auto& step) {
    std::optional<MemoryLimit> limit;
    if (call.rank == call.ranks - 1) limit.emplace(16 * mib);
    const std::string message = input_error(step);
    limit.reset();
    EXPECT_NE(message.find("memory"), std::string::npos) << message;
    EXPECT_NE(message.find(culprit), std::string::npos) << message;
  };
  expect_an_error([&] { (void)call.attend(); });
  expect_an_error([&] { call.differentiate(before); });
  EXPECT_TRUE(bitwise_equal(call.attend().out, before.out)) << "the call after the errors";
}

INSTANTIATE_TEST_SUITE_P(Api, TooLittleMemory, testing::Values("ring", "all-gather"));

}  // namespace
}  // namespace ring_attention::test
