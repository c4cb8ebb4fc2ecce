#include "ring_attention/cuda/choice.hpp"

#include <type_traits>

#include "ring_attention/core/error.hpp"

namespace ring_attention::cuda {
namespace {

/// How messages call a kernel of this kind.
template <class Task>
const std::string kind = std::is_same_v<Task, ForwardTask> ? "forward kernel" : "backward kernel";

template <class Task>
std::string names_that_take(std::span<const Kernel<Task>> kernels, const DeviceTraits& device, Type type,
                            int dim) {
  std::string names;
  for (const auto& kernel : kernels)
    if (kernel.takes(device, type, dim)) names += (names.empty() ? "" : ", ") + std::string(kernel.name);
  return names;
}

template <class Task>
const Kernel<Task>& choose(std::span<const Kernel<Task>> kernels, const std::string& name,
                           const DeviceTraits& device, Type type, int dim) {
  const Kernel<Task>* best = nullptr;
  bool known = name == "auto";
  for (const auto& kernel : kernels) {
    known = known || name == kernel.name;
    const bool wanted = name == "auto" ? kernel.deterministic : name == kernel.name;
    if (wanted && kernel.takes(device, type, dim) && (best == nullptr || kernel.number >= best->number))
      best = &kernel;
  }
  if (best != nullptr) return *best;

  const std::string what = std::string(name_of(type)) + " with a head dim of " + std::to_string(dim);
  const std::string capability =
      std::to_string(device.compute_capability / 10) + "." + std::to_string(device.compute_capability % 10);
  const std::string names = names_that_take(kernels, device, type, dim);
  if (names.empty())
    throw InputError("no " + kind<Task> + " of the GPU takes " + what + " (compute capability " + capability +
                     "): use the CPU");
  if (known)
    throw InputError("the " + kind<Task> + " " + name + " does not take " + what +
                     " on a GPU of compute capability " + capability + ": these do: " + names);
  throw InputError("no " + kind<Task> + " has the name " + name + ": for " + what + " there are " + names);
}

}  // namespace

const ForwardKernel& choose_forward(const std::string& name, const DeviceTraits& device, Type type, int dim) {
  return choose(forward_kernels(), name, device, type, dim);
}

const BackwardKernel& choose_backward(const std::string& name, const DeviceTraits& device, Type type,
                                      int dim) {
  return choose(backward_kernels(), name, device, type, dim);
}

const char* name_of(Type type) { return type == Type::fp32 ? "fp32" : type == Type::bf16 ? "bf16" : "fp16"; }

}  // namespace ring_attention::cuda
