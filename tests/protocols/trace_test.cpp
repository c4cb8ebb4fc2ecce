// The assertions of the models, on what rings of threads really did; and on rings with the mistakes of the models.

#include "protocols/trace.hpp"

#include <gtest/gtest.h>

#include "mistakes/mistaken_ring.hpp"
#include "protocols/mutants.hpp"

namespace ring_attention::test {
namespace {

using Traces = std::vector<Trace>;

/// Runs body(rank's trace, world, rank) on threads.
Traces traces_of(int ranks, const std::function<void(Trace&, LoopbackWorld&, int)>& body) {
  Traces traces(static_cast<std::size_t>(ranks));
  LoopbackWorld world(ranks);
  world.run([&](int rank) { body(traces[static_cast<std::size_t>(rank)], world, rank); });
  return traces;
}

/// Makes recorded transports of this type.
template <class Link>
MakeLink recorded(Trace& trace, LoopbackWorld& world, int rank) {
  return [&trace, &world, rank](int channel) {
    return std::make_unique<Recorded>(trace, channel, std::make_unique<Link>(world, rank, channel));
  };
}

template <class Link = LoopbackTransport>
Traces forward_traces(int ranks, const LabelledRing& problem = {},
                      decltype(&ring_forward<double>) loop = ring_forward<double>) {
  return traces_of(ranks, [&](Trace& trace, LoopbackWorld& world, int rank) {
    forward(trace, problem, {rank, ranks}, recorded<Link>(trace, world, rank), loop);
  });
}

/// Swaps current and incoming as soon as the hop begins.
struct SwapsEarly : MistakenTransport {
  SwapsEarly(LoopbackWorld& world, int rank, int channel)
      : MistakenTransport(std::make_unique<LoopbackTransport>(world, rank, channel),
                          ring_mistake("early-swap"), Channel{channel}) {}
};

Traces backward_traces(int ranks, const LabelledRing& problem = {},
                       decltype(&ring_backward<double>) loop = ring_backward<double>) {
  return traces_of(ranks, [&](Trace& trace, LoopbackWorld& world, int rank) {
    backward(trace, problem, {rank, ranks}, recorded<LoopbackTransport>(trace, world, rank), loop);
  });
}

const LabelledRing causal{.mask = Mask::causal()};
const LabelledRing window{.mask = Mask{.left = 3, .right = 1}};

TEST(Traces, OfTheRingsHold) {
  for (const int ranks : {1, 2, 3, 4, 5, 8})
    for (const LabelledRing& problem : {LabelledRing{}, causal, window}) {
      SCOPED_TRACE(ranks);
      const Traces forward = forward_traces(ranks, problem);
      EXPECT_TRUE(holds(forward));
      EXPECT_TRUE(holds(backward_traces(ranks, problem)));
      for (const Trace& trace : forward)
        EXPECT_EQ(std::ranges::count(trace, Act::end, &Event::act), ranks) << "a step each";
    }
}

TEST(Traces, ShowBuffersSwappedBeforeTheWait) {
  for (const int ranks : {2, 3, 4}) {
    EXPECT_FALSE((holds(forward_traces(ranks, {}, swaps_early)))) << ranks;
    EXPECT_FALSE((holds(forward_traces<SwapsEarly>(ranks)))) << ranks;
  }
}

TEST(Traces, ShowAReceiverThatMiscountsTheHops) {
  for (const int ranks : {2, 3, 4}) {
    LabelledRing problem = causal;
    problem.moves = false;
    const auto traces = [&](auto make) {
      Traces all(static_cast<std::size_t>(ranks));
      for (int rank = 0; rank < ranks; ++rank) {
        Trace& trace = all[static_cast<std::size_t>(rank)];
        forward(trace, problem, {rank, ranks}, [&](int) { return make(trace, Ring{rank, ranks}); });
      }
      return all;
    };
    EXPECT_TRUE(holds(traces([](Trace& trace, Ring at) {
      return std::make_unique<Recorded>(trace, 0, std::make_unique<Nowhere>(at));
    })));
    const auto hops = kv_hops(problem.mask, problem.placement(ranks), problem.placement(ranks));
    EXPECT_FALSE(
        holds(traces([&](Trace& trace, Ring at) { return std::make_unique<Miscounts>(trace, at, hops); })));
  }
}

TEST(Traces, ShowAHopThatDoesNotWaitForTheComputeBefore) {
  const auto traces = [](int ranks, bool waits) {
    return traces_of(ranks, [&](Trace& trace, LoopbackWorld& world, int rank) {
      KvParcel<double> kv = LabelledRing{}.parcel({rank, ranks});
      LateEngine engine(trace, {}, {rank, ranks});
      AfterComputes transport(waits, engine, trace, world, rank);
      ring_forward(engine, transport, kv);
      engine.wait();
    });
  };
  for (const int ranks : {2, 3, 4}) {
    EXPECT_TRUE(holds(traces(ranks, true)));
    EXPECT_EQ(static_cast<bool>(holds(traces(ranks, false))), ranks == 2) << "one hop does not show it";
  }
}

TEST(Traces, ShowAComputeThatDoesNotWaitForItsHop) {
  for (const int ranks : {2, 3, 4}) EXPECT_FALSE((holds(forward_traces<FinishesLate>(ranks))));
}

TEST(Traces, ShowGradientsThatMakeTooFewHops) {
  for (const RingMistake& mistake : ring_mistakes())
    for (const int ranks : {2, 3, 4}) {
      if (mistake.gradient_hops == nullptr) continue;
      const Traces traces = traces_of(ranks, [&](Trace& trace, LoopbackWorld& world, int rank) {
        const MakeLink right = recorded<LoopbackTransport>(trace, world, rank);
        backward(trace, {}, {rank, ranks}, [&](int channel) {
          return std::make_unique<MistakenTransport>(right(channel), mistake, Channel{channel});
        });
      });
      EXPECT_FALSE(holds(traces)) << mistake.id;
    }
}

TEST(Traces, ShowGradientsAddedBeforeTheyHaveArrived) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the mistake is a data race, which the thread sanitizer finds first";
#endif
  for (const int ranks : {2, 3, 4})
    EXPECT_FALSE(holds(backward_traces(ranks, {}, backward_with<Mistake::adds_early>)));
}

// The threads get through: LoopbackTransport sends in start(). Blocking messages would not, whatever MPI buffers.
TEST(Traces, ShowADeadlockOfTwoChannels) {
  for (const int ranks : {3, 4, 5}) {
    const Traces traces = backward_traces(ranks, {}, backward_with<Mistake::kv_first_on_rank_1>);
    EXPECT_FALSE(holds(traces));
    EXPECT_FALSE(holds(traces, 1));
  }
}

}  // namespace
}  // namespace ring_attention::test
