// What the lessons over NCCL share: a GPU for each rank, a communicator, and what is counted outside of an idea.
#pragma once

#include <nccl.h>

#include <map>
#include <optional>

#include "cli/own_gpu.hpp"
#include "common/gpu.hpp"
#include "common/noting_engine.hpp"
#include "common/problem.hpp"
#include "ring_attention/cuda/engine.hpp"
#include "ring_attention/ring/transports/nccl.hpp"

namespace ring_attention::gpu {

// The bytes that this rank has sent from each buffer, and its groups of send and receive, since they were set to zero.
// A lesson includes its idea with ncclSend and ncclGroupEnd defined as these two.
inline std::map<const void*, Index> bytes_sent_from;
inline Index groups = 0;
inline ncclResult_t counted_send(const void* data, std::size_t count, ncclDataType_t type, int to,
                                 ncclComm_t comm, cudaStream_t stream) {
  bytes_sent_from[data] += static_cast<Index>(count * (type == ncclFloat ? sizeof(float) : 1));
  return ncclSend(data, count, type, to, comm, stream);
}
inline ncclResult_t counted_group_end() {
  ++groups;
  return ncclGroupEnd();
}

// A communicator for a lesson's own calls.
class OwnNccl {
 public:
  explicit OwnNccl(const Communicator& comm) {
    ncclUniqueId id{};
    if (comm.rank() == 0) check(ncclGetUniqueId(&id));
    broadcast(comm, id);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    check(ncclCommInitRankConfig(&comm_, comm.size(), id, comm.rank(), &config));
  }
  OwnNccl(const OwnNccl&) = delete;
  ~OwnNccl() { (void)ncclCommDestroy(comm_); }
  [[nodiscard]] ncclComm_t handle() const { return comm_; }

 private:
  static void check(ncclResult_t code) {
    require(code == ncclSuccess, std::string("NCCL: ") + ncclGetErrorString(code));
  }
  ncclComm_t comm_ = nullptr;
};

// The flags of a lesson over NCCL. Before Lesson::parse().
struct Flags {
  ProblemFlags problem;
  bool share = false;
  Index lengths = emulated() ? 0 : 5;  // around c*, that are timed

  void offer(Lesson& lesson, bool times = false) {
    problem.offer(lesson, {1, 256});
    lesson.options().flag("--share-gpu", share, "More ranks than GPUs, to try it out: correctness only");
    if (times)
      lesson.options().option("--lengths", lengths,
                              "How many lengths are timed, c* in the middle, each twice the one before",
                              {0, 9});
    lesson.needs_gpu(cuda::why_no_device());
  }
};

// The GPU of this rank, two streams, and two communicators: the library's, and one for the lesson's own calls.
class Gpus {
 public:
  Gpus(const Communicator& comm, bool may_share)
      : shared(use_own_gpu(comm, may_share).anywhere), world(comm, {.share_gpu = shared}) {
    if (comm.size() == 1) return;
    own_.emplace(comm);
    ranks = own_->handle();
  }

  // The GPU of rank 0, as a line of a lesson.
  void describe(const Lesson& lesson) const {
    lesson.say("  rank 0 on " + cuda::name_of(cuda::current_device()) +
               (emulated() ? ": correctness only"
                : shared   ? ": ranks share a GPU: correctness only, times mean nothing"
                           : ""));
  }

  const bool shared;  // by ranks: times mean nothing
  cuda::Stream compute, transfer{cuda::Stream::Priority::high};
  cuda::DeviceMemory memory{compute.handle()};
  NcclWorld world;             // first, because it prepares NCCL for ranks that share a GPU
  ncclComm_t ranks = nullptr;  // none in a ring of one

 private:
  std::optional<OwnNccl> own_;
};

// The keys of each step, and when the step begins and ends on the stream.
class NotedSteps : public StepNotes {
 public:
  NotedSteps(const cuda::Stream& compute, int ranks)
      : stream_(compute.handle()), first_(Shape{1, 1, ranks, 1}) {}

  void note(const KeyValue<float>& kv, const std::function<void()>& compute) override {
    if (kv.k.size() > 0) {
      const std::span<float> first(first_.data() + steps_.size(), 1);
      cuda::copy(first, kv.k.elements().first(1), stream_);
    }
    Step& step = steps_.emplace_back();
    step.ranges = kv.ranges;
    step.begin.record(stream_);
    compute();
    step.end.record(stream_);
  }

  // After the streams have been synchronised:
  [[nodiscard]] std::vector<GivenKeys> steps() const {
    const Tensor<float> first = cuda::downloaded(first_, stream_);
    std::vector<GivenKeys> given;
    for (const Step& step : steps_) given.push_back({step.ranges, first.data()[given.size()]});
    return given;
  }
  [[nodiscard]] const cuda::Event& end_of(std::size_t step) const { return steps_[step].end; }
  // Seconds between the steps: the compute stream waited.
  [[nodiscard]] double exposed_seconds() const {
    double sum = 0;
    for (std::size_t step = 1; step < steps_.size(); ++step)
      sum += steps_[step].begin.seconds_since(steps_[step - 1].end);
    return sum;
  }

 private:
  struct Step {
    TokenRanges ranges;
    cuda::Event begin, end;
  };

  cuda::StreamHandle stream_;
  cuda::DeviceTensor<float> first_;  // of each step's keys
  std::vector<Step> steps_;
};

// This rank's K,V in its GPU's memory.
template <class T>
cuda::DeviceTensor<T> uploaded_parcel(const RandomProblem& problem, const Placement& placement, int rank,
                                      const cuda::Stream& stream) {
  return cuda::uploaded<T>(RingBuffers(problem, placement, rank).current, stream.handle());
}
// The same for the library's ring.
template <class T>
KvParcel<T> library_parcel(const RandomProblem& problem, const Placement& placement, int rank,
                           const Gpus& gpus) {
  const auto own = uploaded_parcel<T>(problem, placement, rank, gpus.compute);
  KvParcel<T> kv(problem.kv, placement, rank, gpus.memory);
  gpus.memory.copy(kv.elements(), own.view().elements().first(kv.elements().size()));
  return kv;
}

}  // namespace ring_attention::gpu
