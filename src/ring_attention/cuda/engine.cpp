#include "ring_attention/cuda/engine.hpp"

#include <numbers>

#include "ring_attention/cuda/error.hpp"

namespace ring_attention {

using namespace cuda;

template <class T>
void CudaEngine<T>::begin(View<const T> q, const TokenRanges& ranges, View<const float> bias) {
  require_queries(q.shape(), ranges, bias.shape());
  device_ = traits_for(options_);
  tables_ = tables_for(options_, scoring_, q.shape(), ranges);
  pairs_ = PairsOnDevice(scoring_, tables_->dropout, bias);
  kernel_ =
      &choose_forward(options_.kernel, device_, type_of<T>, static_cast<int>(q.shape().dim), pairs_.any());
  q_ = q;
  bias_ = bias.shape();
  o_ = Tensor<float>(q.shape(), options_.allocator);
  m_ = Tensor<float>(q.shape().per_row(), options_.allocator);
  l_ = Tensor<float>(q.shape().per_row(), options_.allocator);
  fresh_ = true;
  seen_ = 0;
  finished_ = false;
}

template <class T>
void CudaEngine<T>::accumulate(const KeyValue<T>& kv, const Progress& progress) {
  (void)require_keys({q_.shape(), q_.shape(), bias_}, kv);
  require(!finished_, "CudaEngine: a piece of keys after the last one");
  const bool last = ++seen_ == options_.pieces;
  if (q_.size() > 0)
    for_each_launch<ForwardTask>(
        {task_of(q_.shape(), q_.data(), scoring_, tables_->mask), true, o_.data(), m_.data(), l_.data()},
        scoring_.mask.parts(), kv.k.shape(), kv.k.data(), kv.v.data(), kv.ranges,
        [&](const ForwardTask& task, int part) {
          ForwardTask next = task;
          next.fresh = std::exchange(fresh_, false);
          next.last = last && part + 1 == scoring_.mask.parts() && ends_shard(next);
          finished_ = next.last;
          pairs_.launch(*kernel_, next, type_of<T>, device_, options_.stream);
        });
  if (progress) progress();
}

template <class T>
AttentionResult<float> CudaEngine<T>::finish() {
  // Without any key o and l are still the zeros of their allocation, and m is not used.
  if (!finished_)
    finish_rows(o_.data(), m_.data(), l_.data(), q_.shape().per_row().size(),
                static_cast<int>(q_.shape().dim), options_.stream);
  if (tables_->sinks.size() > 0)
    add_sinks(o_.data(), m_.data(), tables_->sinks.data(), q_.shape(), options_.stream);
  return {std::move(o_), std::move(m_)};
}

template <class T>
Partial<float> CudaEngine<T>::to_partial() const {
  if (fresh_) return Partial<float>::empty(q_.shape());
  require(!finished_, "CudaEngine: after the last piece there is a result and no state");
  Partial<float> partial{downloaded(o_, options_.stream), downloaded(m_, options_.stream),
                         downloaded(l_, options_.stream)};
  for (float& m : partial.m.view().elements()) m = static_cast<float>(m * std::numbers::ln2);
  return partial;
}

template <class T>
void CudaBackward<T>::begin(const BackwardInputs<T>& forward, const TokenRanges& ranges) {
  forward.require_queries(ranges);
  const Shape& q = forward.q.shape();
  require_equal_widths(q, forward.out.shape());
  device_ = traits_for(options_);
  tables_ = tables_for(options_, scoring_, q, ranges);
  pairs_ = PairsOnDevice(scoring_, tables_->dropout, forward.bias);
  kernel_ = &choose_backward(options_.kernel, device_, type_of<T>, static_cast<int>(q.dim), pairs_.any());
  forward_ = forward;
  delta_ = Tensor<float>(q.per_row(), options_.allocator);
  grad_q_ = Tensor<float>(q, options_.allocator);
  grad_bias_ = Tensor<float>(forward.bias.shape(), options_.allocator);
  row_dots(forward.out.data(), forward.grad_out.data(), delta_.data(), q.per_row().size(),
           static_cast<int>(q.dim), type_of<T>, options_.stream);
}

template <class T>
void CudaBackward<T>::accumulate(const KeyValue<T>& kv, const KeyValueGradient<float>& gradient,
                                 const Progress& progress) {
  const Shape& q = forward_.q.shape();
  (void)require_keys(forward_.shapes(), kv, gradient);
  if (q.size() > 0)
    for_each_launch<BackwardTask>(
        {task_of(q, forward_.q.data(), scoring_, tables_->mask), forward_.grad_out.data(),
         forward_.lse.data(), delta_.data(), grad_q_.data(), gradient.k.data(), gradient.v.data()},
        scoring_.mask.parts(), kv.k.shape(), kv.k.data(), kv.v.data(), kv.ranges,
        [&](const BackwardTask& task, int) {
          pairs_.launch(*kernel_, task, type_of<T>, device_, options_.stream, grad_bias_.data());
        });
  if (progress) progress();
}

template <class T>
Tensor<float> CudaBackward<T>::finish() {
  return std::move(grad_q_);
}

template class CudaEngine<float>;
template class CudaEngine<Bf16>;
template class CudaEngine<Fp16>;
template class CudaBackward<float>;
template class CudaBackward<Bf16>;
template class CudaBackward<Fp16>;

}  // namespace ring_attention
