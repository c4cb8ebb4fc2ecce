/// \file
/// `Stream` and `Event`: the order of work on a GPU.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <thread>

#include "ring_attention/cuda/error.hpp"
#include "ring_attention/cuda/kernels.hpp"

struct CUevent_st;

namespace ring_attention::cuda {

/// A point in the work of a stream. Movable, not copyable. Events measure time.
class Event {
 public:
  Event() {
    cudaEvent_t event = nullptr;
    check(cudaEventCreate(&event));
    event_.reset(event);
  }

  /// The event is done when all work that was enqueued on `stream` before this call is done.
  void record(StreamHandle stream) { check(cudaEventRecord(event_.get(), stream)); }
  /// Work that is enqueued on `stream` from now on begins after this event. The host does not wait.
  void block(StreamHandle stream) const { check(cudaStreamWaitEvent(stream, event_.get(), 0)); }
  /// \throws Error if a kernel before the event failed
  [[nodiscard]] bool is_done() const {
    const cudaError_t code = cudaEventQuery(event_.get());
    if (code == cudaErrorNotReady) return false;
    check(code);
    return true;
  }
  void synchronize() const { check(cudaEventSynchronize(event_.get())); }
  /// Seconds from `earlier` to this event; both must be done.
  [[nodiscard]] double seconds_since(const Event& earlier) const {
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, earlier.event_.get(), event_.get()));
    return milliseconds * 1e-3;
  }

 private:
  struct Destroy {
    void operator()(cudaEvent_t event) const { (void)cudaEventDestroy(event); }
  };
  std::unique_ptr<CUevent_st, Destroy> event_;
};

/// An ordered queue of work on the GPU that is current when it is constructed. It does not wait for other streams.
class Stream {
 public:
  enum class Priority { normal, high };

  explicit Stream(Priority priority = Priority::normal) {
    int least = 0, greatest = 0;
    check(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking,
                                       priority == Priority::high ? greatest : least));
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() { (void)cudaStreamDestroy(stream_); }

  [[nodiscard]] StreamHandle handle() const { return stream_; }
  /// The host waits until all enqueued work is done. \throws Error if a kernel failed
  void synchronize() const { check(cudaStreamSynchronize(stream_)); }

 private:
  cudaStream_t stream_ = nullptr;
};

/// The host waits without a time limit until all work that is enqueued on `stream` is done, and calls alive() every 20 us
/// where it is given. \throws Error if a kernel failed
inline void synchronize(StreamHandle stream, const std::function<void()>& alive) {
  if (!alive) return check(cudaStreamSynchronize(stream));
  Event done;
  for (done.record(stream); !done.is_done(); alive())
    std::this_thread::sleep_for(std::chrono::microseconds(20));
}

}  // namespace ring_attention::cuda
