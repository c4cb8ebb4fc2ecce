// An ncclSend that fails inside a group: the group is closed before the communicator is aborted. The rank that sends has
// an error, and the rank after it, which waits for the message.

#include <gtest/gtest.h>

#include "emulator/streams.hpp"
#include "ring_attention/core/error.hpp"
#include "ring_attention/cuda/device_tensor.hpp"
#include "ring_attention/ring/transports/nccl.hpp"

namespace ring_attention::test {
namespace {

TEST(NcclErrors, AFailedSendEndsItsGroupAndTheJob) {
  const Communicator comm(MPI_COMM_WORLD);
  const cuda::Stream stream;
  const cuda::DeviceTensor<float> from({1, 1, 1, 8});
  cuda::DeviceTensor<float> to({1, 1, 1, 8});
  std::string message;
  try {
    NcclWorld world(comm, {.timeout = std::chrono::seconds(2)});
    if (comm.rank() == 1) emulator::sends_until_failure() = 1;
    NcclTransport transport(world, stream.handle());
    transport.start(
        {std::as_bytes(std::span(from.data(), 8)), std::as_writable_bytes(std::span(to.data(), 8))});
    transport.finish();
    transport.drain();
  } catch (const Error& error) {
    message = error.what();
  }
  EXPECT_EQ(emulator::group_depth(), 0);
  const Ring ring{comm.rank(), comm.size()};
  if (ring.rank == 1) {
    EXPECT_NE(message.find("an error of the emulated NCCL (this ncclSend was chosen to fail)"),
              std::string::npos)
        << message;
  } else if (ring.prev() == 1) {
    EXPECT_NE(message.find("hop 0 of 1, from rank 1"), std::string::npos) << message;
    EXPECT_NE(message.find("NCCL_DEBUG=INFO"), std::string::npos) << message;
    EXPECT_NE(message.find("NCCL_P2P_DISABLE=1"), std::string::npos) << message;
  }
  (void)emulator::take_error();
  MPI_Barrier(MPI_COMM_WORLD);
}

TEST(NcclErrors, StepsThatTakeLongerThanTheTimeOutAreNoError) {
  const Communicator comm(MPI_COMM_WORLD);
  const cuda::Stream stream;
  const auto compute = [&] {
    emulator::enqueue(stream.handle(), [begin = 0.0]() mutable {
      if (begin == 0) begin = emulator::now();
      return emulator::now() < begin + 1.5 ? emulator::State::busy : emulator::State::done;
    });
  };
  const cuda::DeviceTensor<float> from({1, 1, 1, 8});
  cuda::DeviceTensor<float> to({1, 1, 1, 8});
  NcclWorld world(comm, {.timeout = std::chrono::seconds(1)});
  NcclTransport transport(world, stream.handle());
  compute();  // the step before the hop
  transport.start(
      {std::as_bytes(std::span(from.data(), 8)), std::as_writable_bytes(std::span(to.data(), 8))});
  compute();  // the step beside it
  transport.finish();
  EXPECT_NO_THROW(transport.drain());
}

}  // namespace
}  // namespace ring_attention::test
