#include "ring_attention/parallel/context_parallel.hpp"

#include <mutex>

namespace ring_attention {

template <class Input, class T>
ContextParallel<Input, T>::ContextParallel(const Device<Input, T>& device, Links& links,
                                           SharedAttention shared)
    : device_(device),
      links_(links),
      shared_(std::move(shared)),
      layout_(links.ulysses(), shared_.grid, shared_.tokens, shared_.q.heads, shared_.kv.heads,
              device.memory()),
      query_ranges_(shared_.grid.shard(shared_.tokens.queries)),
      scoring_(shared_.scoring.of_heads(layout_.heads())),
      kv_(shared_.kv) {
  kv_.heads = layout_.kv_heads().end - layout_.kv_heads().begin;
}

template <class Input, class T>
auto ContextParallel<Input, T>::forward(View<const Input> q, View<const Input> k, View<const Input> v,
                                        View<const Value> bias) -> AttentionResult<Value> {
  const auto own_q = layout_.queries_to_heads<Input>(q);
  const auto own_bias = layout_.bias_to_heads<Value>(bias);
  Forward forward =
      begin_forward(own_q, kv(layout_.keys_to_heads<Input>(k), layout_.keys_to_heads<Input>(v)), own_bias);
  travel(forward);
  return finish(forward);
}

template <class Input, class T>
auto ContextParallel<Input, T>::backward(const BackwardInputs<Input>& inputs, View<const Input> k,
                                         View<const Input> v) -> Gradients<Value> {
  const HeadInputs own = to_heads(inputs);
  Backward backward =
      begin_backward(own, kv(layout_.keys_to_heads<Input>(k), layout_.keys_to_heads<Input>(v)));
  travel(backward);
  return owned(finish(backward, inputs.bias.shape().heads));
}

template <class Input, class T>
auto ContextParallel<Input, T>::to_heads(const BackwardInputs<Input>& inputs) const -> HeadInputs {
  return {layout_.queries_to_heads<Input>(inputs.q), layout_.queries_to_heads<Value>(inputs.out),
          layout_.queries_to_heads<Value>(inputs.lse), layout_.queries_to_heads<Input>(inputs.grad_out),
          layout_.bias_to_heads<Value>(inputs.bias)};
}

template <class Input, class T>
auto ContextParallel<Input, T>::finish(Forward& forward) const -> AttentionResult<Value> {
  AttentionResult<Value> result = forward.engine->finish();
  forward.engine.reset();
  forward.kv.release();
  const Memory& memory = device_.memory();
  return {memory.owned(layout_.queries_to_sequence<Value>(std::move(result.out))),
          memory.owned(layout_.queries_to_sequence<Value>(std::move(result.lse)))};
}

template <class Input, class T>
auto ContextParallel<Input, T>::finish(Backward& backward, Index bias_heads) const -> HeldGradients {
  Tensor<Value> q = backward.engine->finish(), bias = backward.engine->bias_gradient();
  backward.engine.reset();
  backward.kv.release();
  backward.sums.keep_own();
  const View<const Value> k = backward.sums.k(), v = backward.sums.v();
  return {layout_.queries_to_sequence<Value>(std::move(q)), layout_.keys_to_sequence<Value>(k),
          layout_.keys_to_sequence<Value>(v), layout_.bias_to_sequence<Value>(std::move(bias), bias_heads)};
}

template <class Input, class T>
auto ContextParallel<Input, T>::owned(HeldGradients&& held) const -> Gradients<Value> {
  const Memory& memory = device_.memory();
  return {memory.owned(std::move(held.q)), memory.owned(std::move(held.k)), memory.owned(std::move(held.v)),
          memory.owned(std::move(held.bias))};
}

template <class Input, class T>
KvExchange<T> ContextParallel<Input, T>::empty_kv() const {
  const auto& [queries, keys] = shared_.tokens;
  std::vector<int> hops;
  if (!shared_.every_hop) hops = kv_hops(scoring_.mask, queries, keys);
  return {shared_.gathers, kv_, keys, ring().rank, device_.memory(), std::move(hops)};
}

template <class Input, class T>
KvExchange<T> ContextParallel<Input, T>::kv(View<const Input> k, View<const Input> v) const {
  KvExchange<T> own = empty_kv();
  device_.place(own.k(), k);
  device_.place(own.v(), v);
  return own;
}

template <class Input, class T>
auto ContextParallel<Input, T>::begin_forward(View<const Input> q, KvExchange<T> kv,
                                              View<const Value> bias) const -> Forward {
  return {device_.forward(scoring_, q, query_ranges_, bias, expected_keys()), std::move(kv)};
}

template <class Input, class T>
auto ContextParallel<Input, T>::begin_backward(const BackwardInputs<Input>& inputs, KvExchange<T> kv) const
    -> Backward {
  KvExchange<Value> sums(shared_.gathers, kv_, shared_.tokens.keys, ring().rank, device_.memory());
  if (sums.parcel) (void)sums.parcel->spare_buffer();  // a rank without memory for it is found here
  return {device_.backward(scoring_, inputs, query_ranges_, expected_keys()), std::move(kv), std::move(sums)};
}

template <class Input, class T>
void ContextParallel<Input, T>::travel(Forward& forward) {
  const Progress progress = [this] { links_.progress(); };
  keep_when_it_fails(forward, [&] {
    if (forward.kv.shards) {
      all_gather(links_.ring(), *forward.kv.shards);
      all_gather_forward(*forward.engine, ring(), *forward.kv.shards, progress);
    } else {
      const auto transport = this->template transport<T>(Channel::kv);
      ring_forward(*forward.engine, *transport, *forward.kv.parcel);
      device_
          .synchronize();  // a transport that is destroyed earlier frees memory, which waits without a sign of life
      count(Channel::kv, *transport);
    }
  });
  device_.synchronize();
}

template <class Input, class T>
void ContextParallel<Input, T>::travel(Backward& backward) {
  const Progress progress = [this] { links_.progress(); };
  keep_when_it_fails(backward, [&] {
    if (backward.kv.shards) {
      all_gather(links_.ring(), *backward.kv.shards);
      all_gather_backward(*backward.engine, links_.ring(), *backward.kv.shards, *backward.sums.shards,
                          progress);
    } else {
      const auto kv = this->template transport<T>(Channel::kv);
      const auto gradients = this->template transport<Value>(Channel::gradients);
      ring_backward(*backward.engine, *kv, *gradients, *backward.kv.parcel, *backward.sums.parcel);
      device_.synchronize();
      count(Channel::kv, *kv);
      count(Channel::gradients, *gradients);
    }
  });
  device_.synchronize();
}

template <class Input, class T>
TransportStatistics ContextParallel<Input, T>::pieces() const {
  return shared_.gathers ? links_.ring().statistics() : links_.ulysses().statistics();
}

template <class Input, class T>
TransportStatistics ContextParallel<Input, T>::moved() const {
  TransportStatistics all = pieces();
  for (const TransportStatistics& channel : hops_) all += channel;
  return all;
}

template <class Input, class T>
ExpectedKeys ContextParallel<Input, T>::expected_keys() const {
  return {kv_.with_seq(shared_.tokens.keys.max_tokens()), ring().steps()};
}

template <class Input, class T>
template <class E>
std::unique_ptr<Transport> ContextParallel<Input, T>::transport(Channel channel) const {
  return links_.transport(channel, static_cast<std::size_t>(2 * expected_keys().largest.size()) * sizeof(E));
}

template <class Input, class T>
template <class Pass>
void ContextParallel<Input, T>::keep_when_it_fails(Pass& pass, const std::function<void()>& send) {
  try {
    send();
  } catch (...) {
    static std::mutex mutex;
    static std::vector<Pass> kept;
    const std::lock_guard lock(mutex);
    kept.push_back(std::move(pass));
    throw;
  }
}

template class ContextParallel<float>;
template class ContextParallel<double>;
template class ContextParallel<float, Bf16>;
template class ContextParallel<Bf16>;
template class ContextParallel<Fp16>;

}  // namespace ring_attention
