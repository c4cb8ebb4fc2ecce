// The GPU kernels as a shared library for bench_cuda.py, so that they and PyTorch run in one process, on the same
// tensors and with the same clock.
//
// A `Case` is attention of N virtual ranks, one after the other on one GPU. It measures the cost of a ring's
// arithmetic, and with N = 1 the cost of one call. The q, k and v of all ranks are contiguous:
// [rank][batch][heads][tokens][dim].

#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>

#include "ring_attention/cuda/device.hpp"
#include "ring_attention/cuda/engine.hpp"
#include "ring_attention/cuda/error.hpp"
#include "ring_attention/ring/placement.hpp"
#include "ring_attention/ring/topology.hpp"

namespace ring_attention::cuda {
namespace {

using Json = nlohmann::json;

Type type_named(const std::string& name) {
  for (const Type type : {Type::fp32, Type::bf16, Type::fp16})
    if (name == name_of(type)) return type;
  throw InputError("no type " + name);
}

Index bytes_of(Type type) { return type == Type::fp32 ? 4 : 2; }

/// The state of one rank between runs.
struct Rank {
  TokenRanges ranges;
  MaskOnDevice mask;
};

class Case {
 public:
  explicit Case(const Json& what)
      : type_(type_named(what.at("type"))),
        q_{what.at("batch"), what.at("heads"), Index{what.at("seq")} / Index{what.at("ranks")},
           what.at("dim")},
        kv_{q_.batch, what.at("kv_heads"), q_.seq, q_.dim},
        scoring_{1 / std::sqrt(static_cast<double>(q_.dim))},
        traits_(traits_for({.reserved_sms = what.at("reserved_sms")})) {
    const int ranks = what.at("ranks");
    const Index seq = what.at("seq");
    const Placement placement(placement_kind_named(what.at("placement")), seq, ranks);
    require(seq % (Index{2} * ranks) == 0, "the shards of a benchmark's ranks must be equal");
    if (what.at("causal")) scoring_.mask = Mask::causal();
    for (int rank = 0; rank < ranks; ++rank)
      ranks_.push_back({placement.ranges(rank), MaskOnDevice(scoring_, placement.ranges(rank), nullptr)});
    check(cudaStreamSynchronize(nullptr));  // kernels run on streams that do not wait for this one
    if (what.at("backward")) {
      backward_ = &choose_backward(what.at("kernel"), traits_, type_, static_cast<int>(q_.dim));
      delta_ = DeviceTensor<float>(q_.per_row());
    } else {
      forward_ = &choose_forward(what.at("kernel"), traits_, type_, static_cast<int>(q_.dim));
      l_ = DeviceTensor<float>(q_.per_row());
    }
  }

  /// Computes out [rank][batch][heads][tokens][dim] and lse, fp32, for the ranks first .. first + count - 1.
  void forward(int first, int count, const void* q, const void* k, const void* v, float* out, float* lse,
               StreamHandle stream) {
    require(forward_ != nullptr, "this case is a backward");
    for (int rank = first; rank < first + count; ++rank) {
      float* o = out + rank * q_.size();
      float* m = lse + rank * rows();
      const Ring ring{rank, static_cast<int>(ranks_.size())};
      bool fresh = true;
      for_each_step(rank, ForwardTask{task(rank, q), true, o, m, l_.data()}, k, v,
                    [&](int owner, ForwardTask next) {
                      next.fresh = std::exchange(fresh, false);
                      next.last = ring.step_of(owner) + 1 == ring.steps() && ends_shard(next);
                      forward_->launch(next, type_, traits_, stream);
                    });
    }
  }

  /// Computes dq, dk, dv in fp32, in the layout of q, k, v. The time includes setting them to zero and computing delta.
  void backward(const void* q, const void* k, const void* v, const float* out, const float* lse,
                const void* grad_out, float* dq, float* dk, float* dv, StreamHandle stream) {
    require(backward_ != nullptr, "this case is a forward");
    const auto ranks = static_cast<std::size_t>(ranks_.size());
    check(cudaMemsetAsync(dq, 0, ranks * static_cast<std::size_t>(q_.size()) * sizeof(float), stream));
    check(cudaMemsetAsync(dk, 0, ranks * static_cast<std::size_t>(kv_.size()) * sizeof(float), stream));
    check(cudaMemsetAsync(dv, 0, ranks * static_cast<std::size_t>(kv_.size()) * sizeof(float), stream));
    for (int rank = 0; rank < static_cast<int>(ranks); ++rank) {
      const void* do_of_rank = part(grad_out, rank, q_);
      row_dots(out + rank * q_.size(), do_of_rank, delta_.data(), rows(), static_cast<int>(q_.dim), type_,
               stream);
      const BackwardTask begin{
          task(rank, q), do_of_rank, lse + rank * rows(), delta_.data(), dq + rank * q_.size(),
          nullptr,       nullptr};
      for_each_step(rank, begin, k, v, [&](int owner, BackwardTask next) {
        next.grad_k = dk + owner * kv_.size();
        next.grad_v = dv + owner * kv_.size();
        backward_->launch(next, type_, traits_, stream);
      });
    }
  }

  [[nodiscard]] const char* kernel() const { return forward_ != nullptr ? forward_->name : backward_->name; }

 private:
  [[nodiscard]] Index rows() const { return q_.per_row().size(); }
  [[nodiscard]] const void* part(const void* all, int rank, const Shape& shard) const {
    return static_cast<const std::byte*>(all) + rank * shard.size() * bytes_of(type_);
  }
  [[nodiscard]] AttentionTask task(int rank, const void* q) const {
    return task_of(q_, part(q, rank, q_), scoring_, ranks_[static_cast<std::size_t>(rank)].mask);
  }
  /// Calls use(owner, task) for every launch of a rank.
  template <class Task, class Use>
  void for_each_step(int rank, const Task& task, const void* k, const void* v, Use use) const {
    const Ring ring{rank, static_cast<int>(ranks_.size())};
    for (int step = 0; step < ring.steps(); ++step) {
      const int owner = ring.owner(step);
      for_each_launch<Task>(task, scoring_.mask.parts(), kv_, part(k, owner, kv_), part(v, owner, kv_),
                            ranks_[static_cast<std::size_t>(owner)].ranges,
                            [&](const Task& launch, int) { use(owner, launch); });
    }
  }

  Type type_;
  Shape q_, kv_;  // of one rank
  Scoring scoring_;
  DeviceTraits traits_;
  std::vector<Rank> ranks_;
  const ForwardKernel* forward_ = nullptr;
  const BackwardKernel* backward_ = nullptr;
  DeviceTensor<float> l_, delta_;
};

std::string last_error;  // NOLINT: what the C interface hands out
std::string answer;      // NOLINT

/// A C interface cannot throw: returns null or false and stores the text for ring_attention_error().
template <class Work>
auto guarded(Work work) -> decltype(work()) {
  try {
    last_error.clear();
    return work();
  } catch (const std::exception& error) {
    last_error = error.what();
    return {};
  }
}

template <class Kernels>
Json names_of(const Kernels& kernels, const DeviceTraits& device, Type type, int dim) {
  Json list = Json::array();
  for (const auto& kernel : kernels)
    if (kernel.takes(device, type, dim))
      list.push_back({{"number", kernel.number},
                      {"name", kernel.name},
                      {"computes", kernel.computes},
                      {"deterministic", kernel.deterministic}});
  return list;
}

}  // namespace
}  // namespace ring_attention::cuda

using namespace ring_attention;
using namespace ring_attention::cuda;

extern "C" {

const char* ring_attention_error() { return last_error.c_str(); }

/// JSON: {"forward": [...], "backward": [...]}, the kernels that support this type and dim on this device.
const char* ring_attention_kernels(const char* type, int dim) {
  return guarded([&] {
    const DeviceTraits device = traits_of(current_device());
    answer = Json{{"forward", names_of(forward_kernels(), device, type_named(type), dim)},
                  {"backward", names_of(backward_kernels(), device, type_named(type), dim)}}
                 .dump();
    return answer.c_str();
  });
}

Case* ring_attention_case(const char* json) {
  return guarded([&] { return std::make_unique<Case>(Json::parse(json)).release(); });
}

void ring_attention_free(Case* what) { delete what; }

bool ring_attention_forward(Case* what, int first, int count, const void* q, const void* k, const void* v,
                            float* out, float* lse, void* stream) {
  return guarded([&] {
    what->forward(first, count, q, k, v, out, lse, static_cast<StreamHandle>(stream));
    return true;
  });
}

bool ring_attention_backward(Case* what, const void* q, const void* k, const void* v, const float* out,
                             const float* lse, const void* grad_out, float* dq, float* dk, float* dv,
                             void* stream) {
  return guarded([&] {
    what->backward(q, k, v, out, lse, grad_out, dq, dk, dv, static_cast<StreamHandle>(stream));
    return true;
  });
}

}  // extern "C"
