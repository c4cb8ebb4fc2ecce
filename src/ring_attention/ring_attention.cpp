#include "ring_attention/ring_attention.hpp"

#include <functional>
#include <utility>

#include "ring_attention/attention_state.hpp"
#include "ring_attention/core/allocation.hpp"
#include "ring_attention/parallel/context_memory.hpp"
#include "ring_attention/parallel/cpu_device.hpp"
#include "ring_attention/parallel/term_gradients.hpp"

namespace ring_attention {
namespace {

/// Where ranks share heads, messages come before most of the memory is allocated.
/// \throws std::bad_alloc unless this rank can have all of it
template <class T>
void require_memory(const SharedAttention& shared, const Call<T>& call, bool gradients) {
  if (shared.grid.ulysses.size == 1) return;
  constexpr Index bytes = sizeof(T);
  // In the layout that is computed: the arrays of terms, their gradients, and each on its way.
  Index terms = 0;
  each_term(
      [&](Shape term, const auto& array) {
        if (!array) return;
        if (term.heads > 1) term.heads /= shared.grid.ulysses.size;
        terms += (gradients ? 5 : 3) * term.with_seq(shared.tokens.queries.max_tokens()).size() * bytes;
      },
      each_term([](const auto& rows) { return rows.shape(); }, call.term_rows()), call.terms);
  const Index exact = call.options.same_bits > 0 ? exact_bytes(shared, gradients) : 0;
  if (!allocation::available(context_bytes(shared, gradients, {bytes, bytes, bytes}) + exact + terms))
    throw std::bad_alloc();
}

/// The links of a call with arrays of the host.
MpiLinks& links_of(AttentionState& state) {
  const auto& [comm, options] = std::tie(state.comm, state.options);
  const RankGrid grid = rank_grid(options.partition, options.ulysses, comm.rank(), comm.size());
  auto& host = state.host;
  if (!host || host->ulysses != grid.ulysses.size || host->kind != options.transport)
    host.emplace(comm, grid, options.transport);
  return host->links;
}

/// What a call does on this rank, once the arguments of all ranks are checked: use(attention, together).
template <class T>
auto with_attention(AttentionState& state, const Call<T>& call, const Device<T>& device, bool gradients,
                    const std::function<void(const Check&)>& check_more, const auto& use) {
  (void)state.check_together<T>(call, [&](const Check& check) {
    check_more(check);
    require_memory(state.shared_by(call), call, gradients);
  });
  ContextParallel<T> attention(device, links_of(state), state.shared_by(call), state.observers());
  return use(attention, [&](const std::function<void()>& step) { agree(state.comm, step); });
}

template <class T>
CpuDevice<T> cores_of(const AttentionState& state) {
  return CpuDevice<T>({state.options.threads, state.options.isa, state.options.same_bits});
}

/// The gradients that are sums over the rows of all ranks.
template <class T>
void complete_terms(TermGradients<T>& gradients, const AttentionState& state, const BackwardInputs<T>& inputs,
                    const Call<T>& call) {
  complete(gradients, state.comm, inputs, call.scoring, state.options.same_bits > 0,
           call.q.shape().with_seq(call.placement.queries.seq()));
}

/// A function of the caller as a device.
template <class T>
class FunctionDevice : public CpuDevice<T> {
 public:
  explicit FunctionDevice(const AttentionFunction<T>& function) : function_(function) {}

  [[nodiscard]] std::unique_ptr<Engine<T>> forward(const Scoring& scoring, View<const T> q,
                                                   const TokenRanges& ranges, const Terms<T>&,
                                                   const ExpectedKeys&) const override {
    if (!function_) throw InputError("forward: the function is empty");
    auto engine = std::make_unique<FunctionEngine<T>>(scoring, function_);
    engine->begin(q, ranges);
    return engine;
  }

 private:
  const AttentionFunction<T>& function_;
};

}  // namespace

Attention::Attention(MPI_Comm comm, Options options)
    : state_(std::make_unique<AttentionState>(comm, std::move(options))) {}
Attention::Attention(Attention&&) noexcept = default;
Attention& Attention::operator=(Attention&&) noexcept = default;
Attention::~Attention() = default;

Options& Attention::options() { return state_->options; }

void Attention::wait() {
  if (state_->gpu) state_->gpu->wait();
}

template <HostNumber T>
AttentionResult<T> Attention::forward(const AttentionArrays<T>& arrays, const Placements& placement,
                                      const Scoring& scoring) {
  const Call<T> call = call_of("forward", *state_, arrays, placement, scoring);
  return with_attention<T>(
      *state_, call, cores_of<T>(*state_), false, [](const Check&) {},
      [&](ContextParallel<T>& attention, const Together& together) {
        return attention.forward(call.q, call.k, call.v, call.term_rows(), together);
      });
}

template <HostNumber T>
void Attention::forward(const AttentionArrays<T>& arrays, const ResultViews<T>& to,
                        const Placements& placement, const Scoring& scoring) {
  const Call<T> call = call_of("forward", *state_, arrays, placement, scoring);
  with_attention<T>(
      *state_, call, cores_of<T>(*state_), false, [&](const Check& check) { check_results(check, call, to); },
      [&](ContextParallel<T>& attention, const Together& together) {
        attention.forward(call.q, call.k, call.v, call.term_rows(), together, to);
      });
}

template <HostNumber T>
AttentionResult<T> Attention::forward(const AttentionFunction<T>& kernel, const AttentionArrays<T>& arrays,
                                      const Placements& placement, const Scoring& scoring) {
  const Call<T> call = call_of("forward with a function", *state_, arrays, placement, scoring);
  return with_attention<T>(
      *state_, call, FunctionDevice<T>(kernel), false,
      [&](const Check& check) {
        check(call.options.same_bits == 0, "options.same_bits does not go with a function of the caller");
      },
      [&](ContextParallel<T>& attention, const Together& together) {
        return attention.forward(call.q, call.k, call.v, call.term_rows(), together);
      });
}

template <HostNumber T>
Gradients<T> Attention::backward(const AttentionArrays<T>& arrays, const ResultViews<const T>& result,
                                 View<const T> grad_out, const Placements& placement,
                                 const Scoring& scoring) {
  const Call<T> call = call_of("backward", *state_, arrays, placement, scoring);
  const BackwardInputs<T> inputs{arrays.q, result.out, result.lse, grad_out, call.term_rows()};
  Gradients<T> gradients = with_attention<T>(
      *state_, call, cores_of<T>(*state_), true,
      [&](const Check& check) { check_backward(check, call, result, grad_out); },
      [&](ContextParallel<T>& attention, const Together& together) {
        return attention.backward(inputs, call.k, call.v, together);
      });
  complete_terms(gradients.terms(), *state_, inputs, call);
  return gradients;
}

template <HostNumber T>
std::vector<double> Attention::backward(const AttentionArrays<T>& arrays, const ResultViews<const T>& result,
                                        View<const T> grad_out, const GradientViews<T>& to,
                                        const Placements& placement, const Scoring& scoring) {
  const Call<T> call = call_of("backward", *state_, arrays, placement, scoring);
  const BackwardInputs<T> inputs{arrays.q, result.out, result.lse, grad_out, call.term_rows()};
  with_attention<T>(
      *state_, call, cores_of<T>(*state_), true,
      [&](const Check& check) {
        check_backward(check, call, result, grad_out);
        check_results(check, call, to);
      },
      [&](ContextParallel<T>& attention, const Together& together) {
        attention.backward(inputs, call.k, call.v, together, to);
      });
  TermGradients<T> rest;
  complete_terms(rest, *state_, inputs, call);
  return rest.sinks;
}

template AttentionResult<float> Attention::forward(const AttentionArrays<float>&, const Placements&,
                                                   const Scoring&);
template void Attention::forward(const AttentionArrays<float>&, const ResultViews<float>&, const Placements&,
                                 const Scoring&);
template AttentionResult<float> Attention::forward(const AttentionFunction<float>&,
                                                   const AttentionArrays<float>&, const Placements&,
                                                   const Scoring&);
template Gradients<float> Attention::backward(const AttentionArrays<float>&, const ResultViews<const float>&,
                                              View<const float>, const Placements&, const Scoring&);
template std::vector<double> Attention::backward(const AttentionArrays<float>&,
                                                 const ResultViews<const float>&, View<const float>,
                                                 const GradientViews<float>&, const Placements&,
                                                 const Scoring&);
template AttentionResult<double> Attention::forward(const AttentionArrays<double>&, const Placements&,
                                                    const Scoring&);
template void Attention::forward(const AttentionArrays<double>&, const ResultViews<double>&,
                                 const Placements&, const Scoring&);
template AttentionResult<double> Attention::forward(const AttentionFunction<double>&,
                                                    const AttentionArrays<double>&, const Placements&,
                                                    const Scoring&);
template Gradients<double> Attention::backward(const AttentionArrays<double>&,
                                               const ResultViews<const double>&, View<const double>,
                                               const Placements&, const Scoring&);
template std::vector<double> Attention::backward(const AttentionArrays<double>&,
                                                 const ResultViews<const double>&, View<const double>,
                                                 const GradientViews<double>&, const Placements&,
                                                 const Scoring&);

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
