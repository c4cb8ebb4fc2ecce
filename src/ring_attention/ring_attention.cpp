#include "ring_attention/ring_attention.hpp"

#include "ring_attention/parallel/context_parallel.hpp"
#include "ring_attention/parallel/term_gradients.hpp"

namespace ring_attention {
namespace {

template <class T>
Call<T> call_of(const char* name, const Attention& by, const AttentionArrays<T>& arrays,
                const Placements& placement, const Scoring& scoring) {
  if (!by.ranks) throw InputError("Attention: ranks is null, give mpi(comm)");
  const auto& device = by.processor.of<T>();
  return {name,
          arrays,
          placement,
          scoring,
          by.division,
          "computing: " + (device ? device->name() : "nothing") +
              "\nsums of the gradients of numbers: over " +
              (by.sum_numbers ? "all ranks" : "the rows of a rank")};
}

/// Returns when all ranks make this call.
template <class T>
SharedAttention agreed(const Attention& by, const Call<T>& call) {
  const auto& device = by.processor.of<T>();
  return agreed<T>(*by.ranks, call,
                   [&](const Check& check, const SharedAttention& shared) {
                     check(device != nullptr,
                           "the processor does not compute with these numbers: float or double");
                     try {
                       device->check(shared, call.result.has_value());
                     } catch (const InputError& error) {
                       check(false, error.what());
                     }
                     check(device->threads() == 1 || by.ranks->may_have_threads(),
                           "more than 1 thread needs MPI_THREAD_FUNNELED: start MPI with MPI_Init_thread");
                   })
      .shared;
}

/// A step of the preparation: all ranks agree on its failure.
CollectiveStep collectively(const Attention& by) {
  return [&by](const std::function<void()>& step) { agree(*by.ranks, step); };
}

}  // namespace

namespace detail {

template <class T>
AttentionResult<T> attend(const Attention& by, const AttentionArrays<T>& arrays, const Placements& placement,
                          const Scoring& scoring, const std::optional<ResultViews<T>>& to) {
  Call<T> call = call_of("forward", by, arrays, placement, scoring);
  call.to = to;
  SharedAttention shared = agreed(by, call);
  Links& links = by.ranks->links(shared.grid);
  ContextParallel<T> attention(*by.processor.of<T>(), links, std::move(shared));
  AttentionResult<T> result = attention.forward(arrays.q, arrays.k, arrays.v, call.bias(), collectively(by));
  if (!to) return result;
  copy_results(attention.memory(), result, *to);
  return {};
}

template <class T>
Gradients<T> differentiate(const Attention& by, const AttentionArrays<T>& arrays,
                           const ResultViews<const T>& result, View<const T> grad_out,
                           const Placements& placement, const Scoring& scoring,
                           const std::optional<View<const T>>& grad_lse,
                           const std::optional<GradientViews<T>>& to) {
  Call<T> call = call_of("backward", by, arrays, placement, scoring);
  call.result = result;
  call.grad_out = grad_out;
  call.grad_lse = grad_lse;
  call.gradients_to = to;
  SharedAttention shared = agreed(by, call);
  Links& links = by.ranks->links(shared.grid);
  const BackwardInputs<T> inputs = call.backward_inputs();
  const Device<T>& device = *by.processor.of<T>();
  ContextParallel<T> attention(device, links, std::move(shared));
  Gradients<T> gradients;
  if (to) {
    auto backward = attention.travelled(inputs, arrays.k, arrays.v, collectively(by));
    auto held = attention.finish(backward);
    copy_results(attention.memory(), held, *to);
    gradients.numbers() = std::move(held.numbers);
  } else {
    gradients = attention.backward(inputs, arrays.k, arrays.v, collectively(by));
  }
  complete(gradients.terms(), by.ranks->all(), inputs, scoring, device.is_exact(), attention.shared().q);
  if (by.sum_numbers) all_reduce(by.ranks->all(), gradients.numbers());
  return gradients;
}

#define RING_ATTENTION_INSTANTIATE(T)                                                                \
  template AttentionResult<T> attend(const Attention&, const AttentionArrays<T>&, const Placements&, \
                                     const Scoring&, const std::optional<ResultViews<T>>&);          \
  template Gradients<T> differentiate(const Attention&, const AttentionArrays<T>&,                   \
                                      const ResultViews<const T>&, View<const T>, const Placements&, \
                                      const Scoring&, const std::optional<View<const T>>&,           \
                                      const std::optional<GradientViews<T>>&);
RING_ATTENTION_INSTANTIATE(float)
RING_ATTENTION_INSTANTIATE(double)
#undef RING_ATTENTION_INSTANTIATE

}  // namespace detail

}  // namespace ring_attention
