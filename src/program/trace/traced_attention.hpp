/// \file
/// `TracedAttention`: the attention of a model's layers, each pass a slice of a trace.
#pragma once

#include <memory>
#include <utility>

#include "program/trace/traced_links.hpp"
#include "ring_attention/model/attention.hpp"

namespace ring_attention {

template <class T>
class TracedAttention : public model::Attention<T> {
 public:
  /// \param trace  outlives this object
  TracedAttention(std::shared_ptr<model::Attention<T>> attention, Trace& trace)
      : attention_(std::move(attention)), trace_(trace) {}

  [[nodiscard]] AttentionResult<T> forward(View<const T> q, View<const T> k, View<const T> v,
                                           const Scoring& scoring) override {
    return slice("attention, forward", [&] { return attention_->forward(q, k, v, scoring); });
  }
  [[nodiscard]] Gradients<T> backward(const BackwardInputs<T>& inputs, View<const T> k, View<const T> v,
                                      const Scoring& scoring) override {
    return slice("attention, backward", [&] { return attention_->backward(inputs, k, v, scoring); });
  }

 private:
  auto slice(const char* name, const auto& compute) {
    trace_.begin(Track::compute, name);
    auto result = compute();
    trace_.end(Track::compute);
    return result;
  }

  std::shared_ptr<model::Attention<T>> attention_;
  Trace& trace_;
};

}  // namespace ring_attention
