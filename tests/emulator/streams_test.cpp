// Tests of the emulated streams: what CUDA orders is in order with every seed, and what it does not is out of order with
// some seed.

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "emulator/machine.hpp"
#include "ring_attention/cuda/device_tensor.hpp"
#include "ring_attention/cuda/launch.cuh"
#include "ring_attention/cuda/stream.hpp"

namespace ring_attention::cuda {
namespace {

constexpr std::uint64_t seeds = 40;

// Appends a number to a list whose length is list[0].
__global__ void append(int* list, int number) { list[++list[0]] = number; }
__global__ void fails(int) { emulator::fail("on purpose"); }

// A list in device memory.
class List {
 public:
  List() { check(cudaStreamSynchronize(nullptr)); }
  void append(int number, StreamHandle stream) { launch(cuda::append, {1, 1}, stream, data(), number); }
  // Waits for all streams.
  [[nodiscard]] std::vector<int> numbers() {
    emulator::wait_for_all();
    return {data() + 1, data() + 1 + data()[0]};
  }

 private:
  int* data() { return reinterpret_cast<int*>(memory_.data()); }
  DeviceTensor<float> memory_{Shape{1, 1, 1, 64}};
};

class Streams : public testing::Test {
 protected:
  void TearDown() override { emulator::options() = {}; }

  // The lists that `work` makes, one a seed.
  static std::set<std::vector<int>> lists(const auto& work) {
    std::set<std::vector<int>> all;
    for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
      emulator::options().seed = seed;
      List list;
      work(list);
      all.insert(list.numbers());
    }
    return all;
  }
  using Lists = std::set<std::vector<int>>;
};

TEST_F(Streams, WorkOfOneIsInOrder) {
  const Stream stream;
  EXPECT_EQ(lists([&](List& list) {
              for (int i = 0; i < 5; ++i) list.append(i, stream.handle());
            }),
            (Lists{{0, 1, 2, 3, 4}}));
}

TEST_F(Streams, WorkOfTwoIsInAnyOrder) {
  const Stream a, b;
  const Lists all = lists([&](List& list) {
    list.append(1, a.handle());
    list.append(2, a.handle());
    list.append(3, b.handle());
    list.append(4, b.handle());
  });
  EXPECT_TRUE(all.contains({1, 2, 3, 4}));
  EXPECT_TRUE(all.contains({3, 4, 1, 2}));
  for (const std::vector<int>& list : all) {
    const auto at = [&](int number) { return std::ranges::find(list, number); };
    EXPECT_TRUE(list.size() == 4 && at(1) < at(2) && at(3) < at(4));
  }
}

TEST_F(Streams, AnEventOrdersThem) {
  const Stream a, b;
  EXPECT_EQ(lists([&](List& list) {
              Event event;
              list.append(1, a.handle());
              event.record(a.handle());
              event.block(b.handle());
              list.append(2, b.handle());
            }),
            (Lists{{1, 2}}));
}

TEST_F(Streams, AWaitIsForTheLastRecordBeforeIt) {
  const Stream a, b;
  const Lists all = lists([&](List& list) {
    Event event;
    event.block(b.handle());  // not recorded yet: no wait
    list.append(1, a.handle());
    event.record(a.handle());
    event.block(b.handle());
    list.append(2, b.handle());
    list.append(3, a.handle());
    event.record(a.handle());
  });
  EXPECT_EQ(all, (Lists{{1, 2, 3}, {1, 3, 2}}));
}

TEST_F(Streams, TheDefaultStreamDoesNotWaitForNonBlockingOnes) {
  const Stream a;
  EXPECT_EQ(lists([&](List& list) {
              list.append(1, a.handle());
              list.append(2, nullptr);
            }),
            (Lists{{1, 2}, {2, 1}}));
}

TEST_F(Streams, TheDefaultStreamIsInOrderWithThatOfAThread) {
  EXPECT_EQ(lists([&](List& list) {
              list.append(1, cudaStreamPerThread);
              list.append(2, nullptr);
              list.append(3, cudaStreamPerThread);
            }),
            (Lists{{1, 2, 3}}));
}

TEST_F(Streams, AFreeWaitsForAllWork) {
  const Stream a, b;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    emulator::options().seed = seed;
    List list;
    list.append(1, a.handle());
    list.append(2, b.handle());
    {
      const DeviceTensor<float> freed(Shape{1, 1, 1, 1});
    }
    Event event;
    event.record(a.handle());
    EXPECT_EQ(emulator::end_of(b.handle())->done, true);
    EXPECT_EQ(list.numbers().size(), 2U);
  }
}

TEST_F(Streams, HostMemoryIsReadLaterIfItIsPinned) {
  const Stream stream;
  std::set<int> from_pinned, from_pageable;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    emulator::options().seed = seed;
    PinnedBuffer pinned(Shape{1, 1, 1, sizeof(int)});
    std::vector<std::byte> pageable(sizeof(int));
    for (const bool is_pinned : {true, false}) {
      const std::span<std::byte> from = is_pinned ? pinned.view().elements() : std::span(pageable);
      int value = 1;
      std::memcpy(from.data(), &value, sizeof value);
      DeviceTensor<float> there(Shape{1, 1, 1, 1});
      copy<std::byte>(std::as_writable_bytes(there.view().elements()), from, stream.handle());
      value = 2;
      std::memcpy(from.data(), &value, sizeof value);
      stream.synchronize();
      std::memcpy(&value, there.data(), sizeof value);
      (is_pinned ? from_pinned : from_pageable).insert(value);
    }
  }
  EXPECT_EQ(from_pinned, (std::set<int>{1, 2}));
  EXPECT_EQ(from_pageable, (std::set<int>{1}));
}

TEST_F(Streams, ACopyToPageableMemoryIsCompleteWhenTheCallReturns) {
  const Stream stream;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    emulator::options().seed = seed;
    DeviceTensor<float> there(Shape{1, 1, 1, 1});
    check(cudaMemsetAsync(there.data(), 1, sizeof(float), stream.handle()));
    std::vector<float> here(1);
    copy<float>(here, std::as_const(there).view().elements(), stream.handle());
    EXPECT_EQ(std::bit_cast<int>(here[0]), 0x01010101);
  }
}

TEST_F(Streams, AnEventIsDoneAfterItsWork) {
  const Stream a, b;
  std::set<bool> done_at_once;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    emulator::options().seed = seed;
    List list;
    Event before, after;
    EXPECT_TRUE(after.is_done()) << "never recorded";
    before.record(a.handle());
    list.append(1, a.handle());
    after.record(a.handle());
    done_at_once.insert(after.is_done());
    after.synchronize();
    EXPECT_TRUE(after.is_done());
    EXPECT_EQ(list.numbers(), std::vector<int>{1});
    EXPECT_GE(after.seconds_since(before), 0);
  }
  EXPECT_EQ(done_at_once, (std::set<bool>{false, true}));
}

TEST_F(Streams, ATimeIsAnErrorBeforeTheEventsAreDone) {
  const Stream a;
  std::set<bool> errors;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    emulator::options().seed = seed;
    List list;
    Event before, after;
    before.record(a.handle());
    for (int i = 0; i < 20; ++i) list.append(i, a.handle());
    after.record(a.handle());
    bool error = false;
    try {
      (void)after.seconds_since(before);
    } catch (const Error&) {
      error = true;
    }
    errors.insert(error);
    a.synchronize();
  }
  EXPECT_TRUE(errors.contains(true));
}

TEST_F(Streams, AnErrorIsReportedByTheNextCallThatWaits) {
  const Stream stream;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    emulator::options().seed = seed;
    EXPECT_NO_THROW(launch(fails, {1, 32}, stream.handle(), 0));
    try {
      stream.synchronize();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("on purpose"), std::string::npos) << error.what();
    }
    EXPECT_NO_THROW(stream.synchronize());
  }
}

TEST_F(Streams, ScratchMemoryIsFreedInTheOrderOfItsStream) {
  const Stream stream;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    emulator::options().seed = seed;
    List list;
    {
      const Scratch<int> scratch(8, stream.handle());
      check(cudaMemsetAsync(scratch.data(), 0, 8 * sizeof(int), stream.handle()));
      launch(append, {1, 1}, stream.handle(), scratch.data(), 5);
      launch(append, {1, 1}, stream.handle(), scratch.data(), 6);
    }
    list.append(7, stream.handle());
    EXPECT_EQ(list.numbers(), std::vector<int>{7});
  }
}

}  // namespace
}  // namespace ring_attention::cuda
