/// \file
/// `GpuBackend`: a rank's GPU, and NCCL or MPI.
#pragma once

#include <algorithm>
#include <chrono>
#include <optional>

#include "cli/own_gpu.hpp"
#include "cli/table.hpp"
#include "program/backend.hpp"
#include "ring_attention/cuda/device.hpp"
#include "ring_attention/parallel/cuda_device.hpp"
#include "ring_attention/parallel/cuda_links.hpp"

namespace ring_attention {

/// q, k, v and dO have the type T on the GPU; sums and results are fp32.
template <class T>
class GpuBackend : public Backend<T> {
 public:
  /// \throws AgreedError when no kernel takes the type and the head dim, and its terms of pairs,
  /// or NCCL cannot be used. Collective.
  explicit GpuBackend(const BackendContext& context)
      : context_(context), share_(gpu_share(context.comm)), observer_(context.activity) {
    const DeviceOptions& options = context.options;
    const cuda::DeviceTraits device = cuda::traits_for(with({}));
    const Workload& work = context.work;
    const auto dim = static_cast<int>(work.shared.q.dim);
    const bool pairs = work.shared.terms.bias || work.shared.scoring.dropout.drops();
    agree(context.comm, [&] {
      forward_ = name_flag("--kernel " + options.kernel, [&] {
        return &cuda::choose_forward(options.kernel, device, cuda::type_of<T>, dim, pairs);
      });
      if (!work.gradients) return;
      backward_ = name_flag("--backward-kernel " + options.backward_kernel, [&] {
        return &cuda::choose_backward(options.backward_kernel, device, cuda::type_of<T>, dim, pairs);
      });
    });
    const auto alive = [&activity = context.activity] { activity.beat(); };
    device_.emplace(with(forward_->name), with(backward_ == nullptr ? "" : backward_->name), alive);
    const CudaLinkOptions links{uses_nccl(), std::chrono::duration<double>(options.timeout), alive,
                                share_.anywhere};
    const RankGrid& grid = work.shared.grid;
    name_flag("--transport nccl (staged does without NCCL)",
              [&] { cuda_links_.emplace(context.comm, grid.ulysses, grid.ring, stream_.handle(), links); });
    links_.emplace(*cuda_links_, observer_);
  }

  [[nodiscard]] const Device<T>& device() const override { return *device_; }
  [[nodiscard]] Links& links() override { return *links_; }
  [[nodiscard]] BackendDescription description() const override {
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
  [[nodiscard]] double input_roundoff() const override { return 2 * cuda::unit_roundoff(cuda::type_of<T>); }

  void require_memory() const override {
    const Workload& work = context_.work;
    constexpr Index wide = sizeof(float), narrow = sizeof(T), row_bytes = 40;  // of the state and the masks
    const Shape q = computed_queries(work.shared), kv = computed_keys(work.shared);
    const Index on_its_way = wide * std::max(q.size(), kv.size()), terms = wide * work.term_values(),
                rows = q.per_row().size();
    const Index bytes =
        context_bytes(work.shared, work.gradients, {narrow, narrow, wide}) + on_its_way + row_bytes * rows +
        terms + narrow * work.besides +
        (work.shared.scoring.dropout.drops() ? rows * static_cast<Index>(sizeof(DropoutRow)) : 0);
    agree(context_.comm, [&] {
      const Index free = cuda::free_bytes() / share_.ranks;
      if (bytes > free)
        throw InputError("rank " + std::to_string(context_.comm.rank()) + " needs " + human_bytes(bytes) +
                         " on its GPU" + work.of_which(terms) + " and can have " + human_bytes(free) +
                         ": use more GPUs, --type bf16, or a shorter sequence");
    });
  }

 private:
  [[nodiscard]] bool uses_nccl() const {
#ifdef RING_ATTENTION_HAS_NCCL
    return context_.options.transport != "staged";
#else
    return false;
#endif
  }
  [[nodiscard]] CudaOptions with(const std::string& kernel) const {
    const bool sends = uses_nccl() && context_.work.shared.grid.ring.size > 1;
    return {stream_.handle(), kernel, sends ? nccl_sms : 0};
  }

  BackendContext context_;
  GpuShare share_;
  ActivityObserver observer_;
  cuda::Stream stream_;
  const cuda::ForwardKernel* forward_ = nullptr;
  const cuda::BackwardKernel* backward_ = nullptr;
  std::optional<CudaDevice<T>> device_;
  std::optional<CudaLinks> cuda_links_;
  std::optional<ObservedLinks> links_;
};

}  // namespace ring_attention
