#include "ring_attention/cuda/choice.hpp"

#include <type_traits>

#include "ring_attention/core/error.hpp"

namespace ring_attention::cuda {
namespace {

/// How messages call a kernel of this kind.
template <class Task>
const std::string kind = std::is_same_v<Task, ForwardTask> ? "forward kernel" : "backward kernel";

/// What a kernel is asked to do.
struct Sizes {
  const DeviceTraits& device;
  Type type;
  int dim;
  bool pairs;  // a dense bias, a softcap or dropout
};

std::string to_string(const Sizes& problem) {
  return std::string(name_of(problem.type)) + " with a head dim of " + std::to_string(problem.dim) +
         (problem.pairs ? " and a bias, softcap or dropout" : "");
}

template <class Task>
bool takes(const Kernel<Task>& kernel, const Sizes& problem) {
  return kernel.takes(problem.device, problem.type, problem.dim) &&
         (!problem.pairs || kernel.launch_with_pairs != nullptr);
}

template <class Task>
std::string names_that_take(std::span<const Kernel<Task>> kernels, const Sizes& problem) {
  std::string names;
  for (const auto& kernel : kernels)
    if (takes(kernel, problem)) names += (names.empty() ? "" : ", ") + std::string(kernel.name);
  return names;
}

template <class Task>
const Kernel<Task>& choose(std::span<const Kernel<Task>> kernels, const std::string& name,
                           const Sizes& problem) {
  const Kernel<Task>* best = nullptr;
  bool known = name == "auto";
  for (const auto& kernel : kernels) {
    known = known || name == kernel.name;
    const bool wanted = name == "auto" ? kernel.deterministic && kernel.automatic : name == kernel.name;
    if (wanted && takes(kernel, problem) && (best == nullptr || kernel.number >= best->number))
      best = &kernel;
  }
  if (best != nullptr) return *best;

  const std::string what = to_string(problem);
  const int number = problem.device.compute_capability;
  const std::string capability = std::to_string(number / 10) + "." + std::to_string(number % 10);
  const std::string names = names_that_take(kernels, problem);
  if (names.empty())
    throw InputError("no " + kind<Task> + " of the GPU takes " + what + " (compute capability " + capability +
                     "): use the CPU");
  if (known)
    throw InputError("the " + kind<Task> + " " + name + " does not take " + what +
                     " on a GPU of compute capability " + capability + ": these do: " + names);
  throw InputError("no " + kind<Task> + " has the name " + name + ": for " + what + " there are " + names);
}

}  // namespace

const ForwardKernel& choose_forward(const std::string& name, const DeviceTraits& device, Type type, int dim,
                                    bool pairs) {
  return choose(forward_kernels(), name, {device, type, dim, pairs});
}

const BackwardKernel& choose_backward(const std::string& name, const DeviceTraits& device, Type type, int dim,
                                      bool pairs) {
  return choose(backward_kernels(), name, {device, type, dim, pairs});
}

void require_equal_widths(const Shape& q, const Shape& v) {
  if (v.dim != q.dim)
    throw InputError("the kernels of the GPU take a V of as many columns as K has: V has " +
                     std::to_string(v.dim) + " and K " + std::to_string(q.dim) + ": use the CPU");
}

const char* name_of(Type type) { return type == Type::fp32 ? "fp32" : type == Type::bf16 ? "bf16" : "fp16"; }

}  // namespace ring_attention::cuda
