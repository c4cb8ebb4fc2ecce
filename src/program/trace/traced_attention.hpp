/// \file
/// `TracedAttention`: the attention of a model's layers, each pass and each of its steps a slice of a trace.
#pragma once

#include <memory>
#include <utility>

#include "model/attention.hpp"
#include "model/mesh.hpp"
#include "program/trace/traced_device.hpp"

namespace ring_attention {

/// What model::SharedContext computes, with an engine that is traced. The links of a model are traced already.
template <class T>
class TracedAttention : public model::Attention<T> {
 public:
  /// \param shards  over the ranks of the ring  \param trace  outlives this object
  TracedAttention(std::shared_ptr<Links> links, const Mesh& mesh, const Placement& shards,
                  const CpuOptions& options, Trace& trace)
      : links_(std::move(links)), cpu_(options), grid_(mesh.grid()), shards_(shards), trace_(trace) {
    grid_.rank = mesh.rank();  // of the job
    grid_.ulysses = mesh.ulysses();
    grid_.ring = mesh.ring();
  }

  [[nodiscard]] AttentionResult<T> forward(View<const T> q, View<const T> k, View<const T> v,
                                           const Scoring& scoring) override {
    return slice("attention, forward", q, k, scoring,
                 [&](auto& attention) { return attention.forward(q, k, v); });
  }
  [[nodiscard]] Gradients<T> backward(const BackwardInputs<T>& inputs, View<const T> k, View<const T> v,
                                      const Scoring& scoring) override {
    return slice("attention, backward", inputs.q, k, scoring,
                 [&](auto& attention) { return attention.backward(inputs, k, v); });
  }

 private:
  auto slice(const char* name, View<const T> q, View<const T> k, const Scoring& scoring,
             const auto& compute) {
    const Index seq = shards_.seq();
    const SharedAttention shared{grid_,  false, shards_, q.shape().with_seq(seq), k.shape().with_seq(seq),
                                 scoring};
    trace_.describe(shared);
    const TracedDevice<T> device(cpu_, trace_, shared);
    ContextParallel<T> attention(device, *links_, shared);
    trace_.begin(Track::compute, name);
    auto result = compute(attention);
    trace_.end(Track::compute);
    return result;
  }

  std::shared_ptr<Links> links_;
  CpuDevice<T> cpu_;
  RankGrid grid_;
  Placement shards_;
  Trace& trace_;
};

}  // namespace ring_attention
