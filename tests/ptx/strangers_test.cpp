// Kernels that are not the project's: the right ones compute what they should, and the interpreter names each mistake.

#include "ptx/strangers.hpp"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "cuda/cuda_runs.hpp"

namespace ring_attention::test {
namespace {

Tensor<float> numbers(Index rows, Index columns) {
  Tensor<float> all({1, 1, rows, columns});
  int number = 0;
  for (float& x : all.view().elements()) {
    number += 7;
    x = static_cast<float>(number % 13 - 6);
  }
  return all;
}

/// What launch(to, right) writes to `rows` x `columns` numbers, or the error of the wrong kernel has these words.
Tensor<float> results(Index rows, Index columns, const char* words, StreamHandle stream, auto launch) {
  cuda::DeviceTensor<float> to({1, 1, rows, columns});
  launch(to.data(), true);
  Tensor<float> got = cuda::downloaded(to, stream);
  launch(to.data(), false);
  const cudaError_t error = cudaGetLastError();
  EXPECT_NE(std::string(cudaGetErrorString(error)).find(words), std::string::npos)
      << cudaGetErrorString(error);
  return got;
}

TEST(Strangers, ASumNeedsItsBarrier) {
  const cuda::Stream stream;
  const Tensor<float> from = numbers(1, 64);
  const auto there = cuda::uploaded<float>(from, stream.handle());
  // Warp 0 may be the first; then it reads what warp 1 has not written.
  const Tensor<float> got = results(1, 1, " shared 0x", stream.handle(),
                                    [&](float* to, bool right) { launch_sum(there.data(), to, right); });
  float sum = 0;
  for (const float x : from.view().elements()) sum += x;
  EXPECT_EQ(*got.data(), sum);
}

TEST(Strangers, ACopyIsWaitedFor) {
  const cuda::Stream stream;
  const Tensor<float> from = numbers(4, 64);
  const auto there = cuda::uploaded<float>(from, stream.handle());
  const Tensor<float> got = results(4, 64, "shared 0x", stream.handle(),
                                    [&](float* to, bool right) { launch_copy(there.data(), to, right); });
  EXPECT_TRUE(bitwise_equal(got, from));
}

TEST(Strangers, AProductIsWaitedFor) {
  const cuda::Stream stream;
  const Tensor<float> a = numbers(64, 64), b = numbers(8, 64);
  const auto a_there = cuda::uploaded<Bf16>(a, stream.handle()),
             b_there = cuda::uploaded<Bf16>(b, stream.handle());
  const Tensor<float> got =
      results(64, 8, "accumulator of a wgmma that is under way", stream.handle(),
              [&](float* to, bool right) { launch_product(a_there.data(), b_there.data(), to, right); });
  Tensor<float> want(got.shape());
  for (Index i = 0; i < 64; ++i)
    for (Index j = 0; j < 8; ++j)
      for (Index k = 0; k < 64; ++k) want.data()[i * 8 + j] += a.data()[i * 64 + k] * b.data()[j * 64 + k];
  EXPECT_TRUE(bitwise_equal(got, want));  // integers
}

}  // namespace
}  // namespace ring_attention::test
