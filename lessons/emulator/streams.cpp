#include "emulator/streams.hpp"

#include <driver_types.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

namespace ring_attention::emulator {

class Queue {
 public:
  explicit Queue(bool follows_default) : follows_default_(follows_default) {}

  // A stream that is not cudaStreamNonBlocking: its work and that of the default stream do not overlap.
  [[nodiscard]] bool follows_default() const { return follows_default_; }
  [[nodiscard]] bool empty() const { return pieces_.empty(); }
  [[nodiscard]] const SharedPoint& end() const { return end_; }

  SharedPoint push(StreamWork work, std::vector<SharedPoint> after) {
    std::erase_if(after, [](const SharedPoint& point) { return point->done; });
    end_ = std::make_shared<Point>();
    pieces_.push_back({std::move(work), std::move(after), end_});
    return end_;
  }

  // Calls the work at the head. An error ends it.
  State advance(std::string& error) {
    Piece& piece = pieces_.front();
    State state = State::done;
    try {
      std::erase_if(piece.after, [](const SharedPoint& point) { return point->done; });
      state = piece.after.empty() ? piece.work() : State::waiting;
    } catch (const std::exception& thrown) {
      if (error.empty()) error = thrown.what();
    }
    if (state != State::done) return state;
    piece.point->done = true;
    piece.point->when = now();
    pieces_.pop_front();
    return state;
  }

 private:
  struct Piece {
    StreamWork work;
    std::vector<SharedPoint> after;
    SharedPoint point;
  };
  bool follows_default_;
  std::deque<Piece> pieces_;
  SharedPoint end_ = std::make_shared<Point>(Point{true, 0});
};

namespace {

struct Gpu {
  std::shared_ptr<Queue> of_default = std::make_shared<Queue>(false);
  std::vector<std::shared_ptr<Queue>> queues{of_default};  // in the order of their creation
  Random random;
  std::uint64_t seed = 0;
  std::string error;

  std::uint64_t favoured = 0;  // the stream that is chosen whenever it can go on
  bool eager = false;          // work is done soon after it is enqueued
  bool patient = false;        // the favoured stream is waited for while other ranks are late
  double patient_until = 0;
  bool frozen = false;

  std::uint64_t next_random() {
    if (seed != options().seed) {
      seed = options().seed;
      random.state = seed;
      change_favour();
    }
    return random();
  }
  void change_favour() {
    const std::uint64_t bits = random();
    favoured = bits >> 8U;
    eager = (bits & 3U) == 0;
    patient = (bits & 4U) != 0;
    patient_until = 0;
  }

  // Does one piece of work. Returns false if no stream can go on.
  bool step() {
    if (frozen) return false;
    std::erase_if(queues, [](const auto& queue) { return queue.use_count() == 1 && queue->empty(); });
    if (next_random() % 32 == 0) change_favour();
    for (std::size_t i = 0; i < queues.size(); ++i) {
      Queue& queue = *queues[(favoured + i) % queues.size()];
      if (queue.empty()) continue;
      const State state = queue.advance(error);
      if (state == State::done) {
        patient_until = 0;
        return true;
      }
      if (i == 0 && state == State::busy && is_worth_a_wait()) return false;
    }
    return false;
  }

  // For at most 2 ms: the other ranks may be slow, or may themselves wait for another stream of this one.
  bool is_worth_a_wait() {
    if (!patient) return false;
    if (patient_until == 0) patient_until = now() + 2e-3;
    return now() < patient_until;
  }
};

Gpu& gpu() {
  static Gpu& the_one = *new Gpu;  // never destroyed: threads may end later
  return the_one;
}

}  // namespace
}  // namespace ring_attention::emulator

struct CUstream_st {
  std::shared_ptr<ring_attention::emulator::Queue> queue;
};

namespace ring_attention::emulator {
namespace {

std::shared_ptr<Queue> new_queue(bool follows_default) {
  auto queue = std::make_shared<Queue>(follows_default);
  gpu().queues.push_back(queue);
  return queue;
}

Queue& queue_of(CUstream_st* stream) {
  if (stream == nullptr || stream == cudaStreamLegacy) return *gpu().of_default;
  if (stream != cudaStreamPerThread) return *stream->queue;
  thread_local const std::shared_ptr<Queue> of_thread = new_queue(true);
  return *of_thread;
}

// Work of the default stream comes after all that is enqueued on the streams that follow it, and before what comes later.
std::vector<SharedPoint> ordered_by_default(const Queue& queue) {
  std::vector<SharedPoint> after;
  if (queue.follows_default()) after.push_back(gpu().of_default->end());
  if (&queue == gpu().of_default.get())
    for (const auto& other : gpu().queues)
      if (other->follows_default()) after.push_back(other->end());
  return after;
}

void work_until(const std::function<bool()>& done) {
  for (;;) {
    bool worked = false;
    {
      const std::lock_guard lock(in_use());
      if (done()) return;
      if (gpu().frozen) fail("a call of the host waits for the GPU");
      worked = gpu().step();
    }
    if (!worked) std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

}  // namespace

FrozenGpu::FrozenGpu() {
  const std::lock_guard lock(in_use());
  gpu().frozen = true;
}
// Until the process ends. NOLINTNEXTLINE(clang-analyzer-cplusplus.NewDeleteLeaks)
extern "C" void emulated_gpu_stops() { (void)new FrozenGpu; }
FrozenGpu::~FrozenGpu() {
  const std::lock_guard lock(in_use());
  gpu().frozen = false;
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

SharedPoint enqueue(CUstream_st* stream, StreamWork work) {
  const std::lock_guard lock(in_use());
  Queue& queue = queue_of(stream);
  SharedPoint point = queue.push(std::move(work), ordered_by_default(queue));
  const std::uint64_t steps = gpu().next_random() % 4;
  for (std::uint64_t i = 0; gpu().eager && i < steps; ++i) (void)gpu().step();
  return point;
}

void enqueue_kernel(CUstream_st* stream, std::size_t blocks, std::function<void()> run) {
  static const char* const rate = std::getenv("EMULATED_BLOCKS_PER_SECOND");
  static double busy_until = 0;
  enqueue(stream, [blocks, run = std::move(run), end = 0.0]() mutable {
    if (end == 0) {
      run();
      end = std::max(busy_until, now());
      if (rate != nullptr) end += static_cast<double>(blocks) / std::atof(rate);
      busy_until = end;
    }
    return now() < end ? State::busy : State::done;
  });
}

SharedPoint end_of(CUstream_st* stream) {
  const std::lock_guard lock(in_use());
  return queue_of(stream).end();
}

void wait_for_all() {
  std::vector<SharedPoint> points;
  {
    const std::lock_guard lock(in_use());
    for (const auto& queue : gpu().queues) points.push_back(queue->end());
  }
  for (const SharedPoint& point : points) wait_for(point);
}

void wait_for(const SharedPoint& point) {
  work_until([&] { return point->done; });
}

bool is_done(const SharedPoint& point) {
  const std::lock_guard lock(in_use());
  const std::uint64_t steps = gpu().next_random() % 4;
  for (std::uint64_t i = 0; i < steps; ++i) (void)gpu().step();
  return point->done;
}

std::string take_error() {
  const std::lock_guard lock(in_use());
  return std::exchange(gpu().error, {});
}

double& patience() {
  static double seconds = 60;
  return seconds;
}

unsigned random_of_host(unsigned n) {
  const std::lock_guard lock(in_use());
  return static_cast<unsigned>(gpu().next_random() % n);
}

CUstream_st* create_stream() {
  const std::lock_guard lock(in_use());
  return new CUstream_st{new_queue(false)};
}

void destroy_stream(CUstream_st* stream) {
  const std::lock_guard lock(in_use());
  delete stream;
}

}  // namespace ring_attention::emulator
