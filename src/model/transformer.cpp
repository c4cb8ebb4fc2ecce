#include "model/transformer.hpp"

#include <cmath>

#include "ring_attention/parallel/collectives/sum.hpp"

namespace ring_attention::model {
namespace {

const ModelShape& valid(const ModelShape& shape) {
  require_valid(shape);
  return shape;  // NOLINT: as long as the argument lives
}

}  // namespace

template <class T>
Transformer<T>::Transformer(const ModelShape& shape, RankContext<T> place, std::uint64_t seed,
                            Sharding sharding)
    : shape_(valid(shape)),
      place_(std::move(place)),
      part_(shape, place_.tensor->rank(), place_.tensor->size()),
      weights_(model::layouts(shape, part_), place_.replicas, sharding),
      scoring_{1 / std::sqrt(static_cast<double>(shape.dim)), Mask::causal()} {
  for (std::size_t array = 0; array < weights_.arrays(); ++array)
    initialise(weights_.layout(array), seed, static_cast<Index>(array), weights_.kept(array),
               weights_.values(array));
}

template <class T>
void Transformer<T>::move_to(RankContext<T> place) {
  place_ = std::move(place);
}

template <class T>
LayerOptions Transformer<T>::layer_options(std::size_t layer, bool drops) const {
  LayerOptions options{shape_, scoring_.of_heads(part_.heads), chunk_};
  if (!drops) options.scoring.dropout.probability = 0;
  options.scoring.dropout.layer = static_cast<Index>(layer);
  options.scoring.dropout.first_batch = place_.first_sequence;
  return options;
}

template <class T>
double Transformer<T>::labels_of_all(const Examples& own) const {
  return all_reduce(*place_.replicas, static_cast<double>(own.labels()));
}

template <class T>
Score Transformer<T>::over_replicas(const Score& own) const {
  return {all_reduce(*place_.replicas, own.loss), all_reduce(*place_.replicas, own.labels),
          all_reduce(*place_.replicas, own.correct)};
}

template <class T>
Tensor<T> Transformer<T>::embedded(const Examples& own) {
  const Whole<T> flat = weights_.whole(layers());
  return embed(shape_, EmbeddingParameters<const T>(weights_.layout(layers()), flat.values).embedding, own);
}

template <class T>
Tensor<T> Transformer<T>::through_layers(Tensor<T> x, std::vector<Checkpoint<T>>* keep) {
  for (std::size_t layer = 0; layer < layers(); ++layer) {
    Checkpoint<T> dropped;
    const Whole<T> flat = weights_.whole(layer);
    const LayerParameters<const T> weights(weights_.layout(layer), flat.values);
    x = layer_forward(layer_options(layer, keep != nullptr), place_, weights, std::move(x),
                      keep != nullptr ? keep->emplace_back() : dropped);
  }
  return x;
}

template <class T>
Tensor<T> Transformer<T>::back_through_layers(Tensor<T> grad, std::vector<Checkpoint<T>>& kept) {
  for (std::size_t layer = layers(); layer-- > 0;) {
    const ParameterLayout& layout = weights_.layout(layer);
    GradientSums<T> gradients(layout, place_.rows);
    {
      const Whole<T> flat = weights_.whole(layer);
      grad = layer_backward(layer_options(layer, true), place_, LayerParameters<const T>(layout, flat.values),
                            kept.back(), std::move(grad), gradients);
    }
    kept.pop_back();
    sum_kv_replicas(layout, gradients.floats());
    weights_.reduce(layer, gradients);
  }
  return grad;
}

template <class T>
void Transformer<T>::sum_kv_replicas(const ParameterLayout& layout, std::span<T> gradient) const {
  for (const Parameter& parameter : layout.parameters())
    if (parameter.kv_replicated)
      all_reduce(*place_.kv_replicas, layout.view(gradient, parameter.name).elements());
}

template <class T>
Score Transformer<T>::evaluate(const Examples& own) {
  const Tensor<T> x = through_layers(embedded(own), nullptr);
  const Whole<T> flat = weights_.whole(layers());
  return over_replicas(answer<T>(shape_, EmbeddingParameters<const T>(weights_.layout(layers()), flat.values),
                                 own, x, place_.rows));
}

template <class T>
Score Transformer<T>::differentiate(const Examples& own, double labels) {
  std::vector<Checkpoint<T>> kept;
  Tensor<T> x = through_layers(embedded(own), &kept);
  const ParameterLayout& layout = weights_.layout(layers());
  GradientSums<T> gradients(layout, place_.rows);
  Score score;
  Tensor<T> grad(x.shape());
  {
    const Whole<T> flat = weights_.whole(layers());
    const EmbeddingParameters<const T> weights(layout, flat.values);
    score = answer_gradient<T>(shape_, weights, own, x, labels, gradients("embedding"), gradients("norm"),
                               grad, place_.rows);
  }
  x = Tensor<T>();
  grad = back_through_layers(std::move(grad), kept);
  add_embedding_gradient<T>(shape_, own, grad, gradients("embedding"), place_.rows);
  weights_.reduce(layers(), gradients);
  return over_replicas(score);
}

template class Transformer<float>;
template class Transformer<double>;

}  // namespace ring_attention::model
