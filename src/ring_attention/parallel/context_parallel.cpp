#include "ring_attention/parallel/context_parallel.hpp"

#include <mutex>
#include <optional>

#include "ring_attention/core/bf16.hpp"

namespace ring_attention {
namespace {

template <class T>
void copy(const Memory& memory, View<T> to, View<const T> from) {
  memory.copy(to.elements(), from.elements());
}

}  // namespace

template <class Input, class T>
ContextParallel<Input, T>::ContextParallel(const Device<Input, T>& device, Links& links,
                                           SharedAttention shared)
    : device_(device),
      links_(links),
      shared_(std::move(shared)),
      layout_(links.ulysses(), shared_.grid, shared_.tokens, shared_.q.heads, shared_.kv.heads,
              device.memory(), shared_.bias),
      query_ranges_(shared_.grid.shard(shared_.tokens.queries)),
      scoring_(shared_.scoring.of_heads(layout_.heads())),
      kv_(shared_.kv),
      sums_k_(accumulator(shared_.kv.dim)),
      sums_v_(shared_.kv.value_dim == shared_.kv.dim ? sums_k_ : accumulator(shared_.kv.value_dim)) {
  kv_.heads = layout_.kv_heads().end - layout_.kv_heads().begin;
  links_.shares(shared_);
}

template <class Input, class T>
GradientAccumulator ContextParallel<Input, T>::accumulator(Index dim) const {
  return device_.gradient_accumulator(dim,
                                      shared_.tokens.queries.pieces() * shared_.q.heads / shared_.kv.heads);
}

template <class Input, class T>
auto ContextParallel<Input, T>::forward(View<const Input> q, View<const Input> k, View<const Input> v,
                                        View<const Value> bias, const CollectiveStep& collectively)
    -> AttentionResult<Value> {
  const auto own_q = layout_.queries_to_heads<Input>(q);
  const auto own_bias = layout_.bias_to_heads<Value>(bias);
  auto own_k = layout_.keys_to_heads<Input>(k), own_v = layout_.keys_to_heads<Input>(v);
  std::optional<Forward> forward;
  collectively([&] { forward.emplace(begin_forward(own_q, kv(own_k, own_v), own_bias)); });
  own_k = {};  // the forward has a copy
  own_v = {};
  travel(*forward);
  return finish(*forward);
}

template <class Input, class T>
void ContextParallel<Input, T>::forward(View<const Input> q, View<const Input> k, View<const Input> v,
                                        View<const Value> bias, const CollectiveStep& collectively,
                                        const ResultViews<Value>& to) {
  const AttentionResult<Value> result = forward(q, k, v, bias, collectively);
  copy(device_.memory(), to.out, result.out.view());
  copy(device_.memory(), to.lse, result.lse.view());
}

template <class Input, class T>
auto ContextParallel<Input, T>::travelled(const BackwardInputs<Input>& inputs, View<const Input> k,
                                          View<const Input> v, const CollectiveStep& collectively)
    -> Backward {
  const auto q = layout_.queries_to_heads<Input>(inputs.q),
             grad_out = layout_.queries_to_heads<Input>(inputs.grad_out);
  const auto out = layout_.queries_to_heads<Value>(inputs.out),
             lse = layout_.queries_to_heads<Value>(inputs.lse);
  const auto bias = layout_.bias_to_heads<Value>(inputs.bias);
  std::optional<MaybeOwned<Value>> grad_lse;
  if (inputs.grad_lse) grad_lse = layout_.queries_to_heads<Value>(*inputs.grad_lse);
  auto own_k = layout_.keys_to_heads<Input>(k), own_v = layout_.keys_to_heads<Input>(v);
  std::optional<Backward> backward;
  collectively(
      [&] { backward.emplace(begin_backward({q, out, lse, grad_out, bias, grad_lse}, kv(own_k, own_v))); });
  own_k = {};
  own_v = {};
  travel(*backward);
  return std::move(*backward);
}

template <class Input, class T>
auto ContextParallel<Input, T>::backward(const BackwardInputs<Input>& inputs, View<const Input> k,
                                         View<const Input> v, const CollectiveStep& collectively)
    -> Gradients<Value> {
  Backward backward = travelled(inputs, k, v, collectively);
  HeldGradients held = finish(backward);
  const Memory& memory = device_.memory();
  const auto own = [&](MaybeOwned<Value>&& array) { return owned(memory, std::move(array)); };
  return {own(std::move(held.q)),
          own(std::move(held.k)),
          own(std::move(held.v)),
          {own(std::move(held.bias)), std::move(held.numbers)}};
}

template <class Input, class T>
TermNumbers ContextParallel<Input, T>::backward(const BackwardInputs<Input>& inputs, View<const Input> k,
                                                View<const Input> v, const CollectiveStep& collectively,
                                                const GradientViews<Value>& to) {
  Backward backward = travelled(inputs, k, v, collectively);
  HeldGradients held = finish(backward);
  const Memory& memory = device_.memory();
  copy(memory, to.q, held.q.view());
  copy(memory, to.k, held.k.view());
  copy(memory, to.v, held.v.view());
  copy(memory, to.bias, held.bias.view());
  return std::move(held.numbers);
}

template <class Input, class T>
auto ContextParallel<Input, T>::finish(Forward& forward) const -> AttentionResult<Value> {
  AttentionResult<Value> result = forward.engine->finish();
  forward.engine.reset();
  forward.kv.release();
  const Memory& memory = device_.memory();
  return {owned(memory, layout_.queries_to_sequence<Value>(std::move(result.out))),
          owned(memory, layout_.queries_to_sequence<Value>(std::move(result.lse)))};
}

template <class Input, class T>
auto ContextParallel<Input, T>::finish(Backward& backward) const -> HeldGradients {
  Tensor<Value> q = backward.engine->finish();
  TermGradients<Value> terms = backward.engine->term_gradients();
  backward.engine.reset();
  backward.kv.release();
  backward.sums.keep_own();
  const View<const Value> k = backward.sums.k(), v = backward.sums.v();
  auto held_q = layout_.queries_to_sequence<Value>(std::move(q));
  auto held_k = held_sums(k, sums_k_), held_v = held_sums(v, sums_v_);
  TermNumbers numbers = terms.numbers();
  return {std::move(held_q), std::move(held_k), std::move(held_v),
          layout_.bias_to_sequence<Value>(std::move(terms.bias)), std::move(numbers)};
}

template <class Input, class T>
auto ContextParallel<Input, T>::held_sums(View<const Value> sums, const GradientAccumulator& how) const
    -> MaybeOwned<Value> {
  auto held = layout_.keys_to_sequence<Value>(sums, *how.memory);
  if constexpr (std::is_same_v<Value, float>)
    if (how.rounded) return how.rounded(held.view());
  return held;
}

template <class Input, class T>
void ContextParallel<Input, T>::require_rows(View<const Value> bias) const {
  const Index due = shared_.bias ? ring_attention::count(query_ranges_) : 0;
  require(bias.shape().seq == due,
          "ContextParallel: a bias has the rows of the queries that its rank computes");
}

template <class Input, class T>
KvStorage<T> ContextParallel<Input, T>::empty_kv() const {
  const auto& [queries, keys] = shared_.tokens;
  std::vector<int> hops;
  if (!shared_.every_hop) hops = kv_hops(scoring_.mask, queries, keys);
  return {shared_.all_gathers_kv, kv_, keys, ring().rank, device_.memory(), std::move(hops)};
}

template <class Input, class T>
KvStorage<T> ContextParallel<Input, T>::kv(View<const Input> k, View<const Input> v) const {
  KvStorage<T> own = empty_kv();
  device_.stage_kv(own.k(), k);
  device_.stage_kv(own.v(), v);
  return own;
}

template <class Input, class T>
auto ContextParallel<Input, T>::begin_forward(View<const Input> q, KvStorage<T> kv, View<const Value> bias)
    -> Forward {
  require_rows(bias);
  return {device_.forward(scoring_, q, query_ranges_, bias, expected_keys()), std::move(kv),
          transport<T>(Channel::kv, kv_)};
}

template <class Input, class T>
auto ContextParallel<Input, T>::begin_backward(const BackwardInputs<Input>& inputs, KvStorage<T> kv)
    -> Backward {
  require_rows(inputs.bias);
  const KvShape rows(kv_.with_dim(sums_k_.dim), sums_v_.dim);
  KvStorage<Value> sums(shared_.all_gathers_kv, rows, shared_.tokens.keys, ring().rank,
                        {*sums_k_.memory, *sums_v_.memory});
  if (sums.parcel) (void)sums.parcel->spare_buffer();  // a rank without memory for it is found here
  return {device_.backward(scoring_, inputs, query_ranges_, expected_keys()), std::move(kv), std::move(sums),
          transport<T>(Channel::kv, kv_), transport<Value>(Channel::gradients, rows)};
}

namespace {

/// A failure can leave messages under way, and MPI cannot take a send back: what it may still read and fill then lives as
/// long as the process.
template <class T>
void keep_for_the_process(KvStorage<T>& kv) {
  static std::mutex mutex;
  static auto& kept = *new std::vector<KvStorage<T>>;
  const std::lock_guard lock(mutex);
  kept.push_back(std::move(kv));
}

}  // namespace

template <class Input, class T>
void ContextParallel<Input, T>::travel(Forward& forward) {
  try {
    if (forward.kv.shards) {
      all_gather(links_.ring(), *forward.kv.shards);
      all_gather_forward(*forward.engine, ring(), *forward.kv.shards, [this] { links_.progress(); });
    } else {
      ring_forward(*forward.engine, *forward.transport, *forward.kv.parcel);
      count(Channel::kv, *forward.transport);
    }
    device_.synchronize();  // memory that is freed earlier waits without a sign of life
  } catch (...) {
    keep_for_the_process(forward.kv);
    throw;
  }
}

template <class Input, class T>
void ContextParallel<Input, T>::travel(Backward& backward) {
  try {
    if (backward.kv.shards) {
      all_gather(links_.ring(), *backward.kv.shards);
      all_gather_backward(*backward.engine, links_.ring(), *backward.kv.shards, *backward.sums.shards,
                          [this] { links_.progress(); });
    } else {
      ring_backward(*backward.engine, *backward.kv_transport, *backward.sums_transport, *backward.kv.parcel,
                    *backward.sums.parcel);
      count(Channel::kv, *backward.kv_transport);
      count(Channel::gradients, *backward.sums_transport);
    }
    device_.synchronize();
  } catch (...) {
    keep_for_the_process(backward.kv);
    keep_for_the_process(backward.sums);
    throw;
  }
}

template <class Input, class T>
TransportStatistics ContextParallel<Input, T>::collective_statistics() const {
  return shared_.all_gathers_kv ? links_.ring().statistics() : links_.ulysses().statistics();
}

template <class Input, class T>
TransportStatistics ContextParallel<Input, T>::statistics() const {
  TransportStatistics all = collective_statistics();
  for (const TransportStatistics& channel : hops_) all += channel;
  return all;
}

template <class Input, class T>
ExpectedKeys ContextParallel<Input, T>::expected_keys() const {
  return {kv_.with_seq(shared_.tokens.keys.max_tokens()), ring().steps()};
}

template <class Input, class T>
template <class E>
std::unique_ptr<Transport> ContextParallel<Input, T>::transport(Channel channel, const KvShape& parcel) {
  if (shared_.all_gathers_kv) return nullptr;
  const Index most = parcel.with_seq(shared_.tokens.keys.max_tokens()).elements();
  const std::size_t bytes = static_cast<std::size_t>(most) * sizeof(E);
  return links_.transport(channel, bytes);
}

template class ContextParallel<float>;
template class ContextParallel<double>;
template class ContextParallel<float, Bf16>;
template class ContextParallel<Bf16>;
template class ContextParallel<Fp16>;

}  // namespace ring_attention
