/// \file
/// `Stream` and `Event`: what is done in which order on a GPU.
#pragma once

#include <chrono>
#include <functional>
#include <thread>
#include <utility>

#include "ring_attention/cuda/error.hpp"
#include "ring_attention/cuda/kernels.hpp"

struct CUevent_st;

namespace ring_attention::cuda {

/// A point in the work of a stream. Owned; moves. Every event can tell the time.
class Event {
 public:
  Event() { check(cudaEventCreate(&event_)); }
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() {
    if (event_ != nullptr) (void)cudaEventDestroy(event_);
  }

  /// Stands for all that was enqueued on `stream` before this call.
  void record(StreamHandle stream) { check(cudaEventRecord(event_, stream)); }
  /// What is enqueued on `stream` from now on begins after this event. No host waits.
  void block(StreamHandle stream) const { check(cudaStreamWaitEvent(stream, event_, 0)); }
  /// Has it happened? \throws Error when a kernel before it failed
  [[nodiscard]] bool is_done() const {
    const cudaError_t code = cudaEventQuery(event_);
    if (code == cudaErrorNotReady) return false;
    check(code);
    return true;
  }
  void synchronize() const { check(cudaEventSynchronize(event_)); }
  /// Seconds from `earlier` to this; both must have happened.
  [[nodiscard]] double seconds_since(const Event& earlier) const {
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, earlier.event_, event_));
    return milliseconds * 1e-3;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

/// An ordered queue of work on the GPU that was current when it was made. Waits for no other stream by itself.
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
  /// Waits on the host until all that was enqueued is done. \throws Error when a kernel failed
  void synchronize() const { check(cudaStreamSynchronize(stream_)); }
  /// Waits however long it takes, and calls alive() meanwhile. \throws Error when a kernel failed
  void synchronize(const std::function<void()>& alive) const {
    Event done;
    for (done.record(stream_); !done.is_done(); alive())
      std::this_thread::sleep_for(std::chrono::microseconds(20));
  }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace ring_attention::cuda
