#include "ring_attention/ring_attention.hpp"

#include <functional>
#include <utility>

#include "ring_attention/attention_state.hpp"
#include "ring_attention/parallel/cpu_device.hpp"
#include "ring_attention/parallel/observed.hpp"
#include "ring_attention/parallel/term_gradients.hpp"

namespace ring_attention {
namespace {

/// The links of a call with arrays of the host.
Links& links_of(AttentionState& state) {
  const Options& options = state.options;
  const RankGrid grid =
      rank_grid(options.partition, options.ulysses, state.ranks->rank(), state.ranks->size());
  auto& host = state.host;
  if (!host || host->ulysses != grid.ulysses.size) host = {grid.ulysses.size, state.ranks->links(grid)};
  return *host->links;
}

template <class T>
CpuDevice<T> cores_of(const AttentionState& state) {
  return CpuDevice<T>({state.options.threads, state.options.isa, state.options.same_bits});
}

/// A function of the caller as a device.
template <class T>
class FunctionDevice : public CpuDevice<T> {
 public:
  explicit FunctionDevice(const AttentionFunction<T>& function) : function_(function) {}

  [[nodiscard]] std::unique_ptr<Engine<T>> forward(const Scoring& scoring, View<const T> q,
                                                   const TokenRanges& ranges, const Terms<T>&,
                                                   const ExpectedKeys& keys) const override {
    if (!function_) throw InputError("forward: the function is empty");
    auto engine = std::make_unique<FunctionEngine<T>>(scoring, function_);
    engine->begin(q, ranges, keys.largest.value_dim);
    return engine;
  }

 private:
  const AttentionFunction<T>& function_;
};

/// A step of the preparation: all ranks agree on its failure.
CollectiveStep collectively(const AttentionState& state) {
  return [&state](const std::function<void()>& step) { agree(*state.ranks, step); };
}

/// \returns the result, unless the call says where it goes
template <class T>
AttentionResult<T> attend(AttentionState& state, const Call<T>& call, const Device<T>& device) {
  (void)state.agreed(call);
  ObservedContextParallel<T> attention(device, links_of(state), state.shared_by(call),
                                       state.options.observers);
  if (!call.to) return attention.forward(call.q, call.k, call.v, call.term_rows(), collectively(state));
  attention.forward(call.q, call.k, call.v, call.term_rows(), collectively(state), *call.to);
  return {};
}

/// \returns the gradients, unless the call says where they go; those of numbers of heads always
template <class T>
Gradients<T> differentiate(AttentionState& state, const Call<T>& call) {
  (void)state.agreed(call);
  const BackwardInputs<T> inputs = call.backward_inputs();
  const CpuDevice<T> device = cores_of<T>(state);
  ObservedContextParallel<T> attention(device, links_of(state), state.shared_by(call),
                                       state.options.observers);
  Gradients<T> gradients;
  if (call.gradients_to)
    gradients.numbers() = attention.backward(inputs, call.k, call.v, collectively(state), *call.gradients_to);
  else
    gradients = attention.backward(inputs, call.k, call.v, collectively(state));
  complete(gradients.terms(), state.ranks->all(), inputs, call.scoring, state.options.same_bits > 0,
           call.q.shape().with_seq(call.placement.queries.seq()));
  if (state.options.sum_numbers) all_reduce(state.ranks->all(), gradients.numbers());
  return gradients;
}

}  // namespace

Attention::Attention(MPI_Comm comm, Options options)
    : state_(std::make_unique<AttentionState>(ranks_of(comm), std::move(options))) {}
Attention::Attention(Peers& peers, Options options)
    : state_(std::make_unique<AttentionState>(ranks_of(peers), std::move(options))) {}
Attention::Attention(Attention&&) noexcept = default;
Attention& Attention::operator=(Attention&&) noexcept = default;
Attention::~Attention() = default;

Options& Attention::options() { return state_->options; }

void Attention::wait() {
  if (state_->gpu) state_->gpu->wait();
}

template <HostNumber T>
void Attention::forward(const AttentionArrays<T>& arrays, const ResultViews<T>& to,
                        const Placements& placement, const Scoring& scoring) {
  Call<T> call = call_of("forward", *state_, arrays, placement, scoring);
  call.to = to;
  attend(*state_, call, cores_of<T>(*state_));
}

template <HostNumber T>
void Attention::forward(const AttentionFunction<T>& kernel, const AttentionArrays<T>& arrays,
                        const ResultViews<T>& to, const Placements& placement, const Scoring& scoring) {
  Call<T> call = call_of("forward with a function", *state_, arrays, placement, scoring);
  call.to = to;
  attend(*state_, call, FunctionDevice<T>(kernel));
}

template <HostNumber T>
TermNumbers Attention::backward(const AttentionArrays<T>& arrays, const ResultViews<const T>& result,
                                View<const T> grad_out, const GradientViews<T>& to,
                                const Placements& placement, const Scoring& scoring,
                                std::optional<View<const T>> grad_lse) {
  Call<T> call = call_of("backward", *state_, arrays, placement, scoring);
  call.result = result;
  call.grad_out = grad_out;
  call.grad_lse = grad_lse;
  call.gradients_to = to;
  return std::move(differentiate(*state_, call).numbers());
}

template <HostNumber T>
AttentionResult<T> Attention::forward(const AttentionArrays<T>& arrays, const Placements& placement,
                                      const Scoring& scoring) {
  return attend(*state_, call_of("forward", *state_, arrays, placement, scoring), cores_of<T>(*state_));
}

template <HostNumber T>
AttentionResult<T> Attention::forward(const AttentionFunction<T>& kernel, const AttentionArrays<T>& arrays,
                                      const Placements& placement, const Scoring& scoring) {
  return attend(*state_, call_of("forward with a function", *state_, arrays, placement, scoring),
                FunctionDevice<T>(kernel));
}

template <HostNumber T>
Gradients<T> Attention::backward(const AttentionArrays<T>& arrays, const ResultViews<const T>& result,
                                 View<const T> grad_out, const Placements& placement, const Scoring& scoring,
                                 std::optional<View<const T>> grad_lse) {
  Call<T> call = call_of("backward", *state_, arrays, placement, scoring);
  call.result = result;
  call.grad_out = grad_out;
  call.grad_lse = grad_lse;
  return differentiate(*state_, call);
}

#define RING_ATTENTION_INSTANTIATE(T)                                                                    \
  template void Attention::forward(const AttentionArrays<T>&, const ResultViews<T>&, const Placements&,  \
                                   const Scoring&);                                                      \
  template void Attention::forward(const AttentionFunction<T>&, const AttentionArrays<T>&,               \
                                   const ResultViews<T>&, const Placements&, const Scoring&);            \
  template TermNumbers Attention::backward(const AttentionArrays<T>&, const ResultViews<const T>&,       \
                                           View<const T>, const GradientViews<T>&, const Placements&,    \
                                           const Scoring&, std::optional<View<const T>>);                \
  template AttentionResult<T> Attention::forward(const AttentionArrays<T>&, const Placements&,           \
                                                 const Scoring&);                                        \
  template AttentionResult<T> Attention::forward(const AttentionFunction<T>&, const AttentionArrays<T>&, \
                                                 const Placements&, const Scoring&);                     \
  template Gradients<T> Attention::backward(const AttentionArrays<T>&, const ResultViews<const T>&,      \
                                            View<const T>, const Placements&, const Scoring&,            \
                                            std::optional<View<const T>>);
RING_ATTENTION_INSTANTIATE(float)
RING_ATTENTION_INSTANTIATE(double)
#undef RING_ATTENTION_INSTANTIATE

AttentionResult<float> forward(MPI_Comm comm, View<const float> q, View<const float> k, View<const float> v,
                               const Placements& placement, const Scoring& scoring, const Options& options,
                               std::optional<View<const float>> bias) {
  return Attention(comm, options).forward<float>({q, k, v, bias}, placement, scoring);
}
AttentionResult<float> forward(MPI_Comm comm, const AttentionFunction<float>& kernel, View<const float> q,
                               View<const float> k, View<const float> v, const Placements& placement,
                               const Scoring& scoring, const Options& options) {
  return Attention(comm, options).forward<float>(kernel, {q, k, v}, placement, scoring);
}
Gradients<float> backward(MPI_Comm comm, View<const float> q, View<const float> k, View<const float> v,
                          const AttentionResult<float>& result, View<const float> grad_out,
                          const Placements& placement, const Scoring& scoring, const Options& options,
                          std::optional<View<const float>> bias) {
  return Attention(comm, options)
      .backward<float>({q, k, v, bias}, {result.out, result.lse}, grad_out, placement, scoring);
}

AttentionResult<double> forward(MPI_Comm comm, View<const double> q, View<const double> k,
                                View<const double> v, const Placements& placement, const Scoring& scoring,
                                const Options& options, std::optional<View<const double>> bias) {
  return Attention(comm, options).forward<double>({q, k, v, bias}, placement, scoring);
}
AttentionResult<double> forward(MPI_Comm comm, const AttentionFunction<double>& kernel, View<const double> q,
                                View<const double> k, View<const double> v, const Placements& placement,
                                const Scoring& scoring, const Options& options) {
  return Attention(comm, options).forward<double>(kernel, {q, k, v}, placement, scoring);
}
Gradients<double> backward(MPI_Comm comm, View<const double> q, View<const double> k, View<const double> v,
                           const AttentionResult<double>& result, View<const double> grad_out,
                           const Placements& placement, const Scoring& scoring, const Options& options,
                           std::optional<View<const double>> bias) {
  return Attention(comm, options)
      .backward<double>({q, k, v, bias}, {result.out, result.lse}, grad_out, placement, scoring);
}

}  // namespace ring_attention
