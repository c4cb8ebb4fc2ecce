/// \file
/// `GpuBackend`: a rank's GPU, and NCCL or MPI.
#pragma once

#include <algorithm>
#include <chrono>
#include <concepts>
#include <memory>
#include <optional>

#include "cli/own_gpu.hpp"
#include "cli/table.hpp"
#include "program/backend.hpp"
#include "ring_attention/cuda/device.hpp"
#include "ring_attention/cuda/engine.hpp"
#include "ring_attention/parallel/mpi_all_to_all.hpp"
#include "ring_attention/parallel/staged_all_to_all.hpp"
#include "ring_attention/ring/transports/overlapped.hpp"
#include "ring_attention/ring/transports/staged.hpp"
#ifdef RING_ATTENTION_HAS_NCCL
#include "ring_attention/parallel/nccl_all_to_all.hpp"
#endif

namespace ring_attention {

/// q, k, v and dO have the type T on the GPU; sums and results are fp32. A model of Backend.
template <class T>
class GpuBackend {
 public:
  using Value = float;
  using Input = T;
  using Element = T;
  using Memory = cuda::DeviceMemory;

  /// \throws AgreedError when no kernel takes the type and the head dim, and the bias or the dropout where there is one,
  /// or NCCL cannot be used. Collective.
  explicit GpuBackend(const BackendContext& context) : context_(context), share_(gpu_share(context.comm)) {
    const DeviceOptions& options = context.options;
    const cuda::DeviceTraits device = cuda::traits_for(with({}));
    const Workload& work = context.workload;
    const auto dim = static_cast<int>(work.q.dim);
    const bool pairs = work.bias.size() > 0 || work.scoring.dropout.drops();
    agree(context.comm, [&] {
      forward_ = name_flag("--kernel " + options.kernel, [&] {
        return &cuda::choose_forward(options.kernel, device, cuda::type_of<T>, dim, pairs);
      });
      if (!work.gradients) return;
      backward_ = name_flag("--backward-kernel " + options.backward_kernel, [&] {
        return &cuda::choose_backward(options.backward_kernel, device, cuda::type_of<T>, dim, pairs);
      });
    });
#ifdef RING_ATTENTION_HAS_NCCL
    if (uses_nccl()) connect(world_, context.ring);
#endif
  }

  [[nodiscard]] BackendDescription description() const {
    BackendDescription text;
    text.device = cuda::name_of(cuda::current_device());
    text.engine = "cuda";
    text.isa = text.device + ", " + cuda::name_of(cuda::type_of<T>) + ", forward " + forward_->name;
    if (backward_ != nullptr) text.isa += std::string(", backward ") + backward_->name;
    text.wire = cuda::name_of(cuda::type_of<T>);
    text.transport = uses_nccl() ? "nccl" : "staged";
    if (share_.anywhere) text.warning = "ranks share a GPU: correctness only, times mean nothing";
    return text;
  }
  /// q, k, v and dO are rounded, and p and dS on the way.
  [[nodiscard]] double input_roundoff() const { return 2 * cuda::unit_roundoff(cuda::type_of<T>); }

  /// q, bias and the state (with gradients also dO, dQ and dbias), four KV shards (and six of dK,dV), the rows of a
  /// dropout, and an array on its way; and at most what other partitions have besides.
  void require_memory() const {
    const Workload& work = context_.workload;
    const Index q = work.q.size(), kv = work.kv.size(), wide = sizeof(float), narrow = sizeof(T);
    const Index bias = wide * work.bias_values(), rows = q / work.q.dim;
    const Index bytes = narrow * (q + 4 * kv) + wide * (q + std::max(q, kv) + work.besides) + 40 * rows +
                        (work.gradients ? narrow * q + wide * (q + 6 * kv) : 0) + bias +
                        (work.scoring.dropout.drops() ? rows * static_cast<Index>(sizeof(DropoutRow)) : 0);
    agree(context_.comm, [&] {
      const Index free = cuda::free_bytes() / share_.ranks;
      if (bytes > free)
        throw InputError("rank " + std::to_string(context_.comm.rank()) + " needs " + human_bytes(bytes) +
                         " on its GPU" + (bias > 0 ? " (" + human_bytes(bias) + " of it for the bias)" : "") +
                         " and can have " + human_bytes(free) +
                         ": use more GPUs, --type bf16, or a shorter sequence");
    });
  }

  [[nodiscard]] Memory memory() const { return {stream_.handle()}; }
  /// Its drain() waits for the last step: memory that is freed before would wait without a sign of life.
  [[nodiscard]] Watched transport(Watched::Channel channel) {
    const auto wait = [this] { synchronize(); };
#ifdef RING_ATTENTION_HAS_NCCL
    const auto nccl = [&] { return NcclTransport(*world_, stream_.handle()); };
    if (world_) return Watched(context_.activity, nccl, channel, wait);
#endif
    const auto staged = [&] {
      return StagedTransport<OverlappedTransport>(stream_.handle(), parcel_bytes(), context_.ring, channel);
    };
    return Watched(context_.activity, staged, channel, wait);
  }

  /// Before exchange() it waits for the device: NCCL's time limit is for the messages.
  [[nodiscard]] WatchedAllToAll all_to_all(const Communicator& line) {
    const auto wait = [this] { synchronize(); };
#ifdef RING_ATTENTION_HAS_NCCL
    if (world_) {
      const bool is_ring = &line == &context_.ring;
      if (!is_ring && !heads_) connect(heads_, line);
      return {context_.activity,
              Line(std::make_shared<NcclAllToAll>(is_ring ? *world_ : *heads_, stream_.handle())), wait};
    }
#endif
    return {context_.activity, Line(std::make_shared<StagedAllToAll<MpiAllToAll>>(stream_.handle(), line)),
            wait};
  }

  void fill(View<T> shard, const std::invocable<View<float>> auto& write) const {
    Tensor<float> host(shard.shape());
    write(host.view());
    cuda::upload<T>(shard, host, stream_.handle());
  }
  void fill(View<T> shard, View<const T> array) const { memory().copy(shard.elements(), array.elements()); }
  [[nodiscard]] cuda::DeviceTensor<T> there(View<const float> array) const {
    return cuda::uploaded<T>(array, stream_.handle());
  }
  [[nodiscard]] Tensor<float> here(View<const float> array) const {
    return cuda::downloaded<float>(array, stream_.handle());
  }

  void set_queries(View<const T> q, const TokenRanges& ranges, View<const float> bias = {}) {
    q_ = q;
    bias_ = cuda::uploaded<float>(bias, stream_.handle());
    query_ranges_ = ranges;
  }
  [[nodiscard]] CudaEngine<T> forward_engine() const {
    CudaEngine<T> engine(context_.workload.scoring, with(forward_->name));
    engine.begin(q_, query_ranges_, bias_);
    return engine;
  }
  [[nodiscard]] CudaBackward<T> backward_engine(const DeviceAttentionResult& result,
                                                View<const T> grad_out) const {
    CudaBackward<T> engine(context_.workload.scoring, with(backward_->name));
    engine.begin({q_, result.out, result.lse, grad_out, bias_}, query_ranges_);
    return engine;
  }
  template <class Engine>
  [[nodiscard]] Engine& ring_engine(Engine& engine) const {
    return engine;
  }

  /// However long it takes: the GPU shows no sign of life in between, so the host gives one.
  void synchronize() const {
    stream_.synchronize([&] { context_.activity.beat(); });
  }

 private:
  static constexpr int max_reserved_sms = 8;  // that NCCL takes for a transfer

  [[nodiscard]] bool uses_nccl() const {
#ifdef RING_ATTENTION_HAS_NCCL
    return context_.options.transport != "staged";
#else
    return false;
#endif
  }
  [[nodiscard]] CudaOptions with(const std::string& kernel) const {
    return {stream_.handle(), kernel, uses_nccl() && context_.ring.size() > 1 ? max_reserved_sms : 0};
  }
  /// Of the largest parcel: one of gradients, where there are any.
  [[nodiscard]] std::size_t parcel_bytes() const {
    const Workload& work = context_.workload;
    return static_cast<std::size_t>(2 * work.kv.size()) * (work.gradients ? sizeof(float) : sizeof(T));
  }
#ifdef RING_ATTENTION_HAS_NCCL
  void connect(std::optional<NcclWorld>& world, const Communicator& line) const {
    const NcclOptions nccl{max_reserved_sms, std::chrono::duration<double>(context_.options.timeout),
                           [&activity = context_.activity] { activity.beat(); }, share_.anywhere};
    name_flag("--transport nccl (staged does without NCCL)", [&] { world.emplace(line, nccl); });
  }
#endif

  BackendContext context_;
  GpuShare share_;
  cuda::Stream stream_;
#ifdef RING_ATTENTION_HAS_NCCL
  std::optional<NcclWorld> world_, heads_;  // of the ring, and of the ranks that share heads
#endif
  const cuda::ForwardKernel* forward_ = nullptr;
  const cuda::BackwardKernel* backward_ = nullptr;
  TokenRanges query_ranges_;
  View<const T> q_;
  cuda::DeviceTensor<float> bias_;
};

}  // namespace ring_attention
