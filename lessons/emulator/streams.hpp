// The streams of the emulated GPU: queues of work that is done later, when a seeded random number chooses it.
//
// Nothing runs in the background. A call that waits (cudaStreamSynchronize, cudaFree, ...) does work of all streams until
// it need not wait any more; a call that enqueues or asks does a few pieces at random. Which stream is next is random,
// too: one stream may be far ahead of another one for a long time. Only an event, or the default stream, orders two
// streams. So where a wait is missing, some seed gives a wrong number.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "emulator/machine.hpp"

struct CUstream_st;

namespace ring_attention::emulator {

// What a piece of work says when it is called: it is done, it has begun and needs time or another rank, or work of
// another stream comes first. It is called again until it is done.
enum class State { done, busy, waiting };
using StreamWork = std::function<State()>;

// A point in the work of a stream, and the time in seconds when the work before it was done.
struct Point {
  bool done = false;
  double when = 0;
};
using SharedPoint = std::shared_ptr<Point>;

class Queue;

// Adds work at the end of a stream. Returns the point behind it. The handles are those of CUDA: null is the default
// stream. An exception of the work is kept for take_error().
SharedPoint enqueue(CUstream_st* stream, StreamWork work);

// The same for a kernel. `run` computes it. With EMULATED_BLOCKS_PER_SECOND it then takes the time of its blocks, one
// after the other, and after those of earlier kernels.
void enqueue_kernel(CUstream_st* stream, std::size_t blocks, std::function<void()> run);

// The point behind all work that the stream has now.
SharedPoint end_of(CUstream_st* stream);

// Works until the point is done, or everything that has been enqueued until now.
void wait_for(const SharedPoint& point);
void wait_for_all();
// Works a little, and returns whether the point is done.
bool is_done(const SharedPoint& point);

// The text of the first error of any work since the last call; empty if there is none.
std::string take_error();

// After so many seconds a message of NCCL whose other rank has not come is an error: 60 at first.
double& patience();

// So many calls of ncclSend later, one fails; 0 at first: none. Rank and number are those of EMULATED_FAILING_SEND ("1 2":
// the second one of rank 1 of the job).
int& sends_until_failure();
// How deep the calls of ncclGroupStart are.
int group_depth();

// How often this thread has got memory from the driver: cudaMalloc, cudaHostAlloc, and pools that had to grow.
std::size_t allocations_made();

// While it lives, the GPU does nothing, and a call that waits for it is an error: what has been called is only enqueued.
class FrozenGpu {
 public:
  FrozenGpu();
  FrozenGpu(const FrozenGpu&) = delete;
  FrozenGpu& operator=(const FrozenGpu&) = delete;
  ~FrozenGpu();
};
// The same for ever, for a test in Python.
extern "C" void emulated_gpu_stops();

// A random number below n, for what the calls of the host do.
unsigned random_of_host(unsigned n);

// In seconds.
double now();

// cudaStreamCreate and cudaStreamDestroy. Work of a destroyed stream is still done.
CUstream_st* create_stream();
void destroy_stream(CUstream_st* stream);

}  // namespace ring_attention::emulator
