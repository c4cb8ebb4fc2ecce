// Tests of the emulator: it computes correctly, and it detects the errors that it is made for.

#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <vector>

#include "ring_attention/core/error.hpp"
#include "ring_attention/cuda/launch.cuh"
#include "ring_attention/cuda/ptx_hopper.cuh"

namespace ring_attention::cuda {
namespace {

using emulator::Options;
using emulator::SourceLine;

// Sums 256 numbers: each of 8 warps sums 32 of them, then the first warp adds the 8 sums.
__global__ void sum(const float* numbers, float* total) {
  auto* of_warp = dynamic_shared<float>();
  const int i = static_cast<int>(threadIdx.x), lane = i % 32;
  float x = numbers[i];
  for (int other = 16; other > 0; other /= 2) x += __shfl_xor_sync(0xffffffff, x, other);
  if (lane == 0) of_warp[i / 32] = x;
  __syncthreads();
  if (i < 32) {
    x = lane < 8 ? of_warp[lane] : 0;
    for (int other = 16; other > 0; other /= 2) x += __shfl_xor_sync(0xffffffff, x, other);
    if (i == 0) *total = x;
  }
}

// Launches a kernel and waits for it. \throws Error as the emulator does
template <class Kernel, class... Arguments>
void run(Kernel kernel, const LaunchConfig& grid, const Arguments&... arguments) {
  launch(kernel, grid, nullptr, arguments...);
  check(cudaStreamSynchronize(nullptr));
}

float sum_of(const std::vector<float>& numbers) {
  float total = -1;
  run(sum, {dim3(1), dim3(256), 32}, numbers.data(), &total);
  return total;
}

// d = a b with a [16][16] and b [16][8] in shared memory, both row by row.
__global__ void product(const __half* a, const __half* b, float* d) {
  auto* shared = dynamic_shared<__half>();
  const unsigned lane = threadIdx.x, start = shared_address(shared);
  cp_async_16(start + 16 * lane, a + 8 * lane, true);
  cp_async_commit();
  cp_async_16(start + 512 + 16 * lane, b + 8 * (lane % 16), lane < 16);
  cp_async_commit();
  cp_async_wait<0>();
  __syncwarp();
  unsigned of_a[4], of_b[4];
  ldmatrix_x4(of_a, start + lane % 16 * 32 + lane / 16 * 16);
  ldmatrix_x4_trans(of_b, start + 512 + lane % 16 * 16);
  float sums[4] = {};
  mma_m16n8k16<__half>(sums, of_a, of_b[0], of_b[1]);
  for (unsigned i = 0; i < 4; ++i) d[(lane / 4 + 8 * (i / 2)) * 8 + lane % 4 * 2 + i % 2] = sums[i];
}

std::vector<float> product_of(const std::vector<__half>& a, const std::vector<__half>& b) {
  std::vector<float> d(128, -1);
  run(product, {dim3(1), dim3(32), 1024}, a.data(), b.data(), d.data());
  return d;
}

// One warp waits at a barrier, the other one has returned.
__global__ void never_returns(int) {
  if (threadIdx.x < 32) __syncthreads();
}

// A barrier waits for more bytes than come.
__global__ void waits_for_bytes(const float* from) {
  const unsigned to = shared_address(dynamic_shared<float>()), barrier = to + 16;
  mbarrier_init(barrier, 1);
  mbarrier_arrive_expect_tx(barrier, 48);
  cp_async_bulk(to, from, 16, barrier);
  mbarrier_wait(barrier, 0);
}

// The lanes of one warp say too early that their numbers are there.
__global__ void arrives_too_early(float* seen) {
  auto* number = dynamic_shared<float>() + threadIdx.x % 32;
  if (threadIdx.x < 32) {
    named_barrier_arrive<64>(1);
    *number = 1;
  } else {
    named_barrier_sync<64>(1);
    seen[threadIdx.x % 32] = *number;
  }
}

__global__ void writes_behind(int) { dynamic_shared<char>()[64 + threadIdx.x] = 0; }

__global__ void does_nothing(int) {}

__global__ void diverges(int) {
  if (threadIdx.x == 0)
    (void)__ballot_sync(0xffffffff, 1);
  else
    (void)__shfl_xor_sync(0xffffffff, 1, 1);
}

// One warpgroup releases registers, two take them.
template <int fewer, int more>
__global__ void moves_registers(int) {
  if (threadIdx.x < 128)
    setmaxnreg_dec<fewer>();
  else
    setmaxnreg_inc<more>();
}

// Adds 1 to a number in each thread, block after block: a block waits until it is its turn. `turn_of` is the turn of the
// first block; each later block has the next turn.
template <bool waits>
__global__ void counts(int* number, int* turn, int turn_of_first, int step) {
  const int own_turn = turn_of_first + step * static_cast<int>(blockIdx.x);
  if (waits && threadIdx.x == 0)
    while (atomicAdd(turn, 0) != own_turn) __nanosleep(20);
  __syncthreads();
  const int before = *number;
  __syncthreads();  // so that another block may run here
  if (threadIdx.x == 0) {
    *number = before + 1;
    __threadfence();
    atomicAdd(turn, 1);
  }
}

// Each block takes the next number as its own.
__global__ void takes_tickets(int* next, int* block_of_ticket) {
  if (threadIdx.x == 0) block_of_ticket[atomicAdd(next, 1)] = static_cast<int>(blockIdx.x);
}

__global__ void sets_a_variable(float* to) {
  __shared__ float of_block;
  if (threadIdx.x == 0) of_block = static_cast<float>(blockIdx.x);
  __syncthreads();
  atomicAdd(to + blockIdx.x, of_block);
}

// A part of a warpgroup changes its registers.
__global__ void moves_registers_alone(int) {
  if (threadIdx.x < 64) setmaxnreg_dec<24>();
}

class Emulator : public testing::Test {
 protected:
  void SetUp() override {
    emulator::options() = {};
    emulator::places().clear();
  }
  void TearDown() override { emulator::options() = {}; }
};

std::vector<float> small_numbers(std::size_t count) {
  std::vector<float> numbers(count);
  for (std::size_t i = 0; i < count; ++i) numbers[i] = static_cast<float>(i * 7 % 23) - 11;
  return numbers;
}

TEST_F(Emulator, Sums) {
  const std::vector<float> numbers = small_numbers(256);
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    emulator::options().seed = seed;
    EXPECT_EQ(sum_of(numbers), std::accumulate(numbers.begin(), numbers.end(), 0.0F));
  }
}

TEST_F(Emulator, MultipliesMatrices) {
  const std::vector<float> a = small_numbers(256), b = small_numbers(128);
  std::vector<float> want(128);
  for (std::size_t i = 0; i < 16; ++i)
    for (std::size_t j = 0; j < 8; ++j)
      for (std::size_t k = 0; k < 16; ++k) want[8 * i + j] += a[16 * i + k] * b[8 * k + j];
  const std::vector<__half> half_a(a.begin(), a.end()), half_b(b.begin(), b.end());
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    emulator::options().seed = seed;
    EXPECT_EQ(product_of(half_a, half_b), want);
  }
}

// 1 and 15 small addends. Three quarters of the last bit of 1 are rounded up, or lost if they are truncated.
TEST_F(Emulator, TruncatesSumsOnRequest) {
  std::vector<__half> a(256, __float2half(0.0F)), b(128, __float2half(0.0F));
  const auto sum_of_addends = [&](float small) {
    a[0] = b[0] = __float2half(1.0F);
    for (std::size_t k = 1; k < 16; ++k) {
      a[k] = __float2half(small * 0x1p12F);
      b[8 * k] = __float2half(0x1p-12F);
    }
    return product_of(a, b)[0];
  };
  EXPECT_EQ(sum_of_addends(0x1p-23F), 1 + 15 * 0x1p-23F);
  EXPECT_EQ(sum_of_addends(0.75F * 0x1p-23F), 1 + 15 * 0x1p-23F);
  emulator::options().truncated_sums = true;
  EXPECT_EQ(sum_of_addends(0x1p-23F), 1 + 15 * 0x1p-23F);
  EXPECT_EQ(sum_of_addends(0.75F * 0x1p-23F), 1);
  EXPECT_EQ(sum_of_addends(-0.75F * 0x1p-23F), 1);
}

// Each barrier and each wait of both kernels is needed: without it some schedule gives wrong numbers.
TEST_F(Emulator, NoticesMissingBarriersAndWaits) {
  const std::vector<float> numbers = small_numbers(256);
  const std::vector<__half> a(numbers.begin(), numbers.end()), b(numbers.begin(), numbers.begin() + 128);
  const float want_sum = sum_of(numbers);
  const std::vector<float> want = product_of(a, b);
  const std::vector<SourceLine> places = emulator::places();
  EXPECT_EQ(places.size(), 3U);
  for (const SourceLine& place : places) {
    bool noticed = false;
    for (std::uint64_t seed = 1; seed <= 20 && !noticed; ++seed) {
      emulator::options() = Options{seed, place};
      noticed = sum_of(numbers) != want_sum || product_of(a, b) != want;
    }
    EXPECT_TRUE(noticed) << "line " << place.line;
  }
}

TEST_F(Emulator, ReportsADeadlock) {
  EXPECT_THROW(run(never_returns, {dim3(1), dim3(64), 0}, 0), Error);
  EXPECT_THROW(run(diverges, {dim3(1), dim3(32), 0}, 0), Error);
}

// Runs the kernel, and expects an error with these words.
template <class Kernel, class... Arguments>
void expect_words(const std::string& words, Kernel kernel, const LaunchConfig& grid,
                  const Arguments&... arguments) {
  try {
    run(kernel, grid, arguments...);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
  }
}

TEST_F(Emulator, SaysWhichThreadsWaitWhere) {
  alignas(16) const float numbers[4] = {};
  expect_words("threads 0-31 wait at barrier 0, where 32 of 64 threads are: " + std::string(__FILE__),
               never_returns, {dim3(1), dim3(64), 0}, 0);
  expect_words(
      "thread 0 waits at an mbarrier, whose phase 0 has 1 of 1 arrivals, and 32 bytes have not come: ",
      waits_for_bytes, {dim3(1), dim3(1), 24}, numbers);
}

TEST_F(Emulator, PausesShowAnArrivalThatIsTooEarly) {
  const auto is_seen = [](bool pauses) {
    emulator::options().pauses = pauses;
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      emulator::options().seed = seed;
      std::vector<float> seen(32);
      run(arrives_too_early, {dim3(1), dim3(64), 128}, seen.data());
      if (seen != std::vector<float>(32, 1)) return true;
    }
    return false;
  };
  EXPECT_FALSE(is_seen(false));
  EXPECT_TRUE(is_seen(true));
}

TEST_F(Emulator, ReportsTooFewRegisters) {
  EXPECT_NO_THROW(run(moves_registers<24, 240>, {dim3(1), dim3(384), 0}, 0));
  EXPECT_THROW(run(moves_registers<32, 240>, {dim3(1), dim3(384), 0}, 0), Error);
}

TEST_F(Emulator, ReportsAWarpgroupThatDoesNotSetItsRegistersTogether) {
  EXPECT_THROW(run(moves_registers_alone, {dim3(1), dim3(128), 0}, 0), Error);
}

TEST_F(Emulator, ReportsAGridThatIsTooLarge) {
  for (const dim3 blocks : {dim3(1, 65536), dim3(1, 1, 65536)})
    EXPECT_THROW(run(does_nothing, {blocks, dim3(32), 0}, 0), Error);
  EXPECT_NO_THROW(run(does_nothing, {dim3(70000), dim3(32), 0}, 0));
}

TEST_F(Emulator, ReportsAWriteBehindSharedMemory) {
  EXPECT_THROW(run(writes_behind, {dim3(1), dim3(32), 64}, 0), Error);
}

// ---- Several blocks

TEST_F(Emulator, RunsBlocksInTurn) {
  emulator::options().multiprocessors = 3;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    emulator::options().seed = seed;
    int number = 0, turn = 0;
    run(counts<true>, {dim3(3), dim3(64), 200 * 1024}, &number, &turn, 0, 1);
    EXPECT_EQ(number, 3);
  }
}

// More than fit at the same time: they start in the order of their numbers.
TEST_F(Emulator, RunsManyBlocksInTurn) {
  emulator::options().multiprocessors = 3;
  int number = 0, turn = 0;
  run(counts<true>, {dim3(20), dim3(64), 200 * 1024}, &number, &turn, 0, 1);
  EXPECT_EQ(number, 20);
}

TEST_F(Emulator, NoticesAMissingWaitBetweenBlocks) {
  std::set<int> numbers;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    emulator::options().seed = seed;
    int number = 0, turn = 0;
    run(counts<false>, {dim3(3), dim3(64)}, &number, &turn, 0, 1);
    numbers.insert(number);
  }
  EXPECT_LT(*numbers.begin(), 3) << "no update was lost";
}

// The first turn is that of a block that cannot start, because all blocks in progress wait for it.
TEST_F(Emulator, ReportsAWaitForABlockThatCannotStart) {
  emulator::options().multiprocessors = 3;
  const auto counts_down = [](unsigned blocks) {
    int number = 0, turn = 0;
    run(counts<true>, {dim3(blocks), dim3(64), 200 * 1024}, &number, &turn, static_cast<int>(blocks) - 1, -1);
    return number;
  };
  EXPECT_EQ(counts_down(3), 3);
  try {
    counts_down(8);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("waits for something that never happens at"), std::string::npos) << text;
    EXPECT_NE(text.find("emulator_test.cpp"), std::string::npos) << text;
    EXPECT_NE(text.find("blocks have not started: 3 fit"), std::string::npos) << text;
  }
}

TEST_F(Emulator, GivesEachBlockItsTicket) {
  std::set<std::vector<int>> orders;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    emulator::options().seed = seed;
    int next = 0;
    std::vector<int> block_of_ticket(5, -1);
    run(takes_tickets, {dim3(5), dim3(32)}, &next, block_of_ticket.data());
    EXPECT_EQ(std::set<int>(block_of_ticket.begin(), block_of_ticket.end()), (std::set<int>{0, 1, 2, 3, 4}));
    orders.insert(block_of_ticket);
  }
  EXPECT_GT(orders.size(), 5U);
}

TEST_F(Emulator, GivesEachBlockItsVariables) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    emulator::options().seed = seed;
    std::vector<float> sums(5);
    run(sets_a_variable, {dim3(5), dim3(64)}, sums.data());
    EXPECT_EQ(sums, (std::vector<float>{0, 64, 128, 192, 256}));
  }
}

TEST_F(Emulator, ReportsTooMuchSharedMemory) {
  EXPECT_THROW(run(does_nothing, {dim3(1), dim3(32), 228 * 1024}, 0), Error);
}

TEST_F(Emulator, RoundsAsTheGpuDoes) {
  EXPECT_EQ(packed<__nv_bfloat16>(1.0F, -2.0F), 0xc0003f80U);
  EXPECT_EQ(packed<__half>(1.0F, -2.0F), 0xc0003c00U);
  EXPECT_EQ(packed<__nv_bfloat16>(1.00390625F, 1.01171875F), 0x3f823f80U) << "ties go to even";
  EXPECT_EQ(ex2_approx(-std::numeric_limits<float>::infinity()), 0.0F);
}

}  // namespace
}  // namespace ring_attention::cuda
