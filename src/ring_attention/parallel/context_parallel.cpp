#include "ring_attention/parallel/context_parallel.hpp"

#include <mutex>
#include <optional>

#include "ring_attention/core/error.hpp"
#include "ring_attention/parallel/ring/kv_ring.hpp"

namespace ring_attention {

Division ring() { return {"ring", make_kv_of<KvRing>(MakeKvOfAll{})}; }

namespace {

/// The layout of a partition, or all heads.
std::unique_ptr<HeadLayout> layout_of(const SharedAttention& shared, Links& links, const Memory& memory) {
  if (shared.division.layout != nullptr)
    if (auto layout = shared.division.layout(shared, links, memory)) return layout;
  return std::make_unique<HeadLayout>(shared.q.heads, shared.kv.heads);
}

/// A failure can leave messages under way, and MPI cannot take a send back: what it may still read and fill then lives as
/// long as the process.
template <class T>
void keep_for_the_process(std::unique_ptr<KvWay<T>> kv) {
  static std::mutex mutex;
  static auto& kept = *new std::vector<std::unique_ptr<KvWay<T>>>;
  const std::lock_guard lock(mutex);
  kept.push_back(std::move(kv));
}

}  // namespace

template <class Input, class T>
ContextParallel<Input, T>::ContextParallel(const Device<Input, T>& device, Links& links,
                                           SharedAttention shared)
    : device_(device),
      links_(links),
      shared_(std::move(shared)),
      layout_(layout_of(shared_, links, device.memory())),
      query_ranges_(shared_.grid.shard(shared_.tokens.queries)),
      scoring_(shared_.scoring.of_heads(layout_->heads())),
      kv_(shared_.kv),
      sums_k_(accumulator(shared_.kv.dim)),
      sums_v_(shared_.kv.value_dim == shared_.kv.dim ? sums_k_ : accumulator(shared_.kv.value_dim)) {
  kv_.heads = layout_->kv_heads().end - layout_->kv_heads().begin;
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
  const auto own_q = layout_->to_heads(Held::queries, q);
  const auto own_bias = layout_->to_heads(Held::bias, bias);
  auto own_k = layout_->to_heads(Held::keys, k), own_v = layout_->to_heads(Held::keys, v);
  std::optional<Forward> forward;
  collectively([&] { forward.emplace(begin_forward(own_q, kv(own_k, own_v), own_bias)); });
  own_k = {};  // the forward has a copy
  own_v = {};
  travel(*forward);
  return finish(*forward);
}

template <class Input, class T>
auto ContextParallel<Input, T>::travelled(const BackwardInputs<Input>& inputs, View<const Input> k,
                                          View<const Input> v, const CollectiveStep& collectively)
    -> Backward {
  const auto q = layout_->to_heads(Held::queries, inputs.q),
             grad_out = layout_->to_heads(Held::queries, inputs.grad_out);
  const auto out = layout_->to_heads(Held::queries, inputs.out),
             lse = layout_->to_heads(Held::queries, inputs.lse);
  const auto bias = layout_->to_heads(Held::bias, inputs.bias);
  std::optional<MaybeOwned<Value>> grad_lse;
  if (inputs.grad_lse) grad_lse = layout_->to_heads(Held::queries, *inputs.grad_lse);
  auto own_k = layout_->to_heads(Held::keys, k), own_v = layout_->to_heads(Held::keys, v);
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
auto ContextParallel<Input, T>::finish(Forward& forward) const -> AttentionResult<Value> {
  AttentionResult<Value> result = forward.engine->finish();
  forward.engine.reset();
  forward.kv.reset();
  const Memory& memory = device_.memory();
  return {owned(memory, layout_->to_sequence(Held::queries, std::move(result.out))),
          owned(memory, layout_->to_sequence(Held::queries, std::move(result.lse)))};
}

template <class Input, class T>
auto ContextParallel<Input, T>::finish(Backward& backward) const -> HeldGradients {
  Tensor<Value> q = backward.engine->finish();
  TermGradients<Value> terms = backward.engine->term_gradients();
  backward.engine.reset();
  const auto [k, v] = backward.kv->sums();
  auto held_q = layout_->to_sequence(Held::queries, std::move(q));
  auto held_k = held_sums(k, sums_k_), held_v = held_sums(v, sums_v_);
  TermNumbers numbers = terms.numbers();
  return {std::move(held_q), std::move(held_k), std::move(held_v),
          layout_->to_sequence(Held::bias, std::move(terms.bias)), std::move(numbers)};
}

template <class Input, class T>
auto ContextParallel<Input, T>::held_sums(View<const Value> sums, const GradientAccumulator& how) const
    -> MaybeOwned<Value> {
  auto held = layout_->to_sequence(Held::keys, sums, how.memory.get());
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
std::unique_ptr<KvWay<T>> ContextParallel<Input, T>::empty_kv() const {
  return std::get<MakeKv<T>>(shared_.division.make_kv)(shared_, kv_, device_.memory());
}

template <class Input, class T>
std::unique_ptr<KvWay<T>> ContextParallel<Input, T>::kv(View<const Input> k, View<const Input> v) const {
  std::unique_ptr<KvWay<T>> own = empty_kv();
  device_.stage_kv(own->k(), k);
  device_.stage_kv(own->v(), v);
  return own;
}

template <class Input, class T>
auto ContextParallel<Input, T>::begin_forward(View<const Input> q, std::unique_ptr<KvWay<T>> kv,
                                              View<const Value> bias) -> Forward {
  require_rows(bias);
  Forward forward{device_.forward(scoring_, q, query_ranges_, bias, expected_keys()), std::move(kv)};
  forward.kv->open(links_);
  return forward;
}

template <class Input, class T>
auto ContextParallel<Input, T>::begin_backward(const BackwardInputs<Input>& inputs,
                                               std::unique_ptr<KvWay<T>> kv) -> Backward {
  require_rows(inputs.bias);
  const KvShape rows(kv_.with_dim(sums_k_.dim), sums_v_.dim);
  kv->add_sums(rows, {*sums_k_.memory, *sums_v_.memory});
  Backward backward{device_.backward(scoring_, inputs, query_ranges_, expected_keys()), std::move(kv)};
  backward.kv->open(links_);
  return backward;
}

template <class Input, class T>
void ContextParallel<Input, T>::send(std::unique_ptr<KvWay<T>>& kv, const auto& pass) {
  try {
    pass();
    for (const Channel channel : {Channel::kv, Channel::gradients})
      hops_[static_cast<std::size_t>(channel)] += kv->hops(channel);
    device_.synchronize();  // memory that is freed earlier waits without a sign of life
  } catch (...) {
    kv->close();
    keep_for_the_process(std::move(kv));
    throw;
  }
}

template <class Input, class T>
void ContextParallel<Input, T>::travel(Forward& forward) {
  send(forward.kv, [&] { forward.kv->forward(*forward.engine); });
}

template <class Input, class T>
void ContextParallel<Input, T>::travel(Backward& backward) {
  send(backward.kv, [&] { backward.kv->backward(*backward.engine); });
}

template <class Input, class T>
ExpectedKeys ContextParallel<Input, T>::expected_keys() const {
  return {kv_.with_seq(shared_.tokens.keys.max_tokens()), shared_.grid.ring.size};
}

template class ContextParallel<float>;
template class ContextParallel<double>;
template class ContextParallel<float, Bf16>;
template class ContextParallel<Bf16>;
template class ContextParallel<Fp16>;

}  // namespace ring_attention
