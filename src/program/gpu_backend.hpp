/// \file
/// `gpu_backend`: a rank's GPU, and NCCL or MPI.
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

/// Calls use(a value of the type that --dtype names).
auto with_gpu_type(const std::string& type, const auto& use) {
  return type == "bf16" ? use(Bf16{}) : type == "fp16" ? use(Fp16{}) : use(float{});
}

/// Do K,V move over NCCL?
[[nodiscard]] inline bool uses_nccl([[maybe_unused]] const DeviceOptions& options) {
#ifdef RING_ATTENTION_HAS_NCCL
  return options.transport != "staged";
#else
  return false;
#endif
}

/// The kernels that the flags name or "auto" chooses; of a backward none without gradients.
struct ChosenKernels {
  const cuda::ForwardKernel* forward = nullptr;
  const cuda::BackwardKernel* backward = nullptr;
};

/// \throws AgreedError when no kernel takes the type and the head dim, and the terms of pairs that there are. Collective.
template <class T>
[[nodiscard]] ChosenKernels choose_kernels(const BackendContext& context, const cuda::DeviceTraits& device) {
  const auto& [options, work] = std::tie(context.options, context.work);
  const auto dim = static_cast<int>(work.shared.q.dim);
  const bool pairs = work.shared.bias || work.shared.scoring.dropout.drops();
  ChosenKernels chosen;
  agree(context.comm, [&] {
    cuda::require_equal_widths(work.shared.q, work.shared.kv.values());
    chosen.forward = name_flag("--kernel " + options.kernel, [&] {
      return &cuda::choose_forward(options.kernel, device, cuda::type_of<T>, dim, pairs);
    });
    if (!work.gradients) return;
    chosen.backward = name_flag("--backward-kernel " + options.backward_kernel, [&] {
      return &cuda::choose_backward(options.backward_kernel, device, cuda::type_of<T>, dim, pairs);
    });
  });
  return chosen;
}

template <class T>
[[nodiscard]] BackendDescription describe_gpu(const DeviceOptions& options, const ChosenKernels& kernels,
                                              bool shares_gpu) {
  BackendDescription text;
  text.device = cuda::name_of(cuda::current_device());
  text.engine = "cuda";
  text.isa = text.device + ", " + cuda::name_of(cuda::type_of<T>) + ", forward " + kernels.forward->name;
  if (kernels.backward != nullptr) text.isa += std::string(", backward ") + kernels.backward->name;
  text.wire = cuda::name_of(cuda::type_of<T>);
  text.transport = uses_nccl(options) ? "nccl" : "staged";
  if (shares_gpu) text.warning = "ranks share a GPU: correctness only, times mean nothing";
  return text;
}

/// \throws AgreedError when one rank cannot have the memory of its GPU for its shards of `work`. Collective.
template <class T>
void require_gpu_memory(const Communicator& comm, const Workload& work, const GpuShare& share) {
  constexpr Index wide = sizeof(float), narrow = sizeof(T), row_bytes = 40;  // of the state and the masks
  const Shape q = computed_queries(work.shared);
  const KvShape kv = computed_keys(work.shared);
  const Index on_its_way = wide * std::max(q.size(), kv.size()), terms = wide * work.bias_values(),
              rows = q.per_row().size();
  const Index bytes =
      context_bytes(work.shared, work.gradients, {narrow, narrow, wide}) + on_its_way + row_bytes * rows +
      terms + narrow * work.extra_elements +
      (work.shared.scoring.dropout.drops() ? rows * static_cast<Index>(sizeof(DropoutRow)) : 0);
  agree(comm, [&] {
    const Index free = cuda::free_bytes() / share.ranks;
    if (bytes > free)
      throw InputError("rank " + std::to_string(comm.rank()) + " needs " + human_bytes(bytes) +
                       " on its GPU" + work.of_which(terms) + " and can have " + human_bytes(free) +
                       ": use more GPUs, --dtype bf16, or a shorter sequence");
  });
}

/// A rank's GPU, and NCCL or MPI: q, k, v and dO have the type T on the GPU; sums and results are fp32.
/// \throws AgreedError as choose_kernels(), or when NCCL cannot be used. Collective.
template <class T>
[[nodiscard]] Backend<T> gpu_backend(const BackendContext& context) {
  const DeviceOptions& options = context.options;
  const RankGrid& grid = context.work.shared.grid;
  const GpuShare share = gpu_share(context.comm);
  const auto stream = std::make_shared<cuda::Stream>();
  const auto with = [&](const std::string& kernel) {
    return CudaOptions{stream->handle(), kernel, uses_nccl(options) && grid.ring.size > 1 ? nccl_sms : 0};
  };
  const ChosenKernels kernels = choose_kernels<T>(context, cuda::traits_for(with({})));
  const auto alive = [&activity = context.activity] { activity.beat(); };
  Backend<T> backend{
      .stream = stream,
      .device = std::make_unique<CudaDevice<T>>(
          with(kernels.forward->name), with(kernels.backward == nullptr ? "" : kernels.backward->name),
          alive),
      .links = {},
      .observers = context.observers(),
      .description = describe_gpu<T>(options, kernels, share.anywhere),
      // q, k, v and dO are rounded, and p and dS on the way
      .input_roundoff = 2 * cuda::unit_roundoff(cuda::type_of<T>),
      .require_memory = [context, share] { require_gpu_memory<T>(context.comm, context.work, share); }};
  const CudaLinkOptions links{uses_nccl(options), std::chrono::duration<double>(options.timeout), alive,
                              share.anywhere};
  name_flag("--transport nccl (staged does without NCCL)", [&] {
    backend.links =
        std::make_unique<CudaLinks>(context.comm, grid.ulysses, grid.ring, stream->handle(), links);
  });
  return backend;
}

}  // namespace ring_attention
