// Exercise 11e: the two named barriers of the ping-pong.
//
// Two warpgroups, 0 and 1, have products and exponentials in turns. One is to issue its products while the other
// computes exponentials, so they issue in turns, and warpgroup 0 begins:
//
//      warpgroup 0   products | softmax  | products | softmax  |
//      warpgroup 1            | products | softmax  | products | softmax
//
// A named barrier has a number from 1 to 15 and lets its threads go when 256 have come. named_barrier_sync<256>(number)
// comes and waits for the others; named_barrier_arrive<256>(number) comes and goes on. All 128 threads of a warpgroup
// call them. Each warpgroup waits for its turn at a barrier of its own, and the other one arrives there. Barrier 1 is that
// of warpgroup 0, barrier 2 that of warpgroup 1.
#include "exercises.hpp"
#include "ring_attention/cuda/launch.cuh"
#include "ring_attention/cuda/ptx_hopper.cuh"

namespace ring_attention::lesson_11 {
namespace {

using cuda::named_barrier_arrive, cuda::named_barrier_sync;

/// Stands for the products of one tile: notes which warpgroup issues them.
__device__ void issue_products(const Turns& a, int group, int thread) {
  if (thread == 0) a.order[atomicAdd(a.issued, 1)] = group;
}

/// Stands for the exponentials of one tile: the warps of the group compute, each in its own time.
__device__ void softmax() { __syncwarp(); }

__global__ void __launch_bounds__(256) take_turns(Turns a) {
  const int group = static_cast<int>(threadIdx.x) / 128, thread = static_cast<int>(threadIdx.x) % 128;
  if (group == 1) named_barrier_arrive<256>(1);
  for (int turn = 0; turn < a.turns; ++turn) {
    named_barrier_sync<256>(1 + group);
    issue_products(a, group, thread);
    named_barrier_arrive<256>(2 - group);
    softmax();
  }
  // Warpgroup 1 has arrived at barrier 1 after its last turn: this completes it.
  if (group == 0) named_barrier_sync<256>(1);
}

}  // namespace

void ping_pong(const Turns& problem, cuda::StreamHandle stream) {
  cuda::launch(take_turns, {1, 256}, stream, problem);
}

}  // namespace ring_attention::lesson_11
