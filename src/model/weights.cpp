#include "model/weights.hpp"

#include "ring_attention/parallel/collectives/sum.hpp"

namespace ring_attention::model {

template <class T>
Weights<T>::Weights(std::vector<ParameterLayout> layouts, Group replicas, Sharding sharding)
    : layouts_(std::move(layouts)), replicas_(std::move(replicas)), sharding_(sharding) {
  for (std::size_t array = 0; array < arrays(); ++array) {
    const Interval part = kept(array);
    const Shape shape{1, 1, 1, part.end - part.begin};
    values_.emplace_back(shape);
    gradients_.emplace_back(shape);
  }
}

template <class T>
Interval Weights<T>::piece(std::size_t array) const {
  return piece_of(layouts_[array].size(), replicas_->rank(), replicas_->size());
}

template <class T>
Interval Weights<T>::kept(std::size_t array) const {
  return sharding_ == Sharding::fsdp ? piece(array) : Interval{0, layouts_[array].size()};
}

template <class T>
std::span<const T> Weights<T>::piece_of_gradients(std::size_t array) {
  const Interval own = piece(array);
  return gradients(array).subspan(static_cast<std::size_t>(own.begin - kept(array).begin),
                                  static_cast<std::size_t>(own.end - own.begin));
}

template <class T>
Whole<T> Weights<T>::whole(std::size_t array) {
  if (sharding_ == Sharding::none) return {values(array)};
  Whole<T> all;
  all.gathered = Tensor<T>({1, 1, 1, layouts_[array].size()});
  all_gather(*replicas_, std::span<const T>(values(array)), all.gathered.view().elements());
  all.values = all.gathered.view().elements();
  return all;
}

template <class T>
void Weights<T>::reduce(std::size_t array, std::span<const T> gradient) {
  const Interval own = piece(array);
  const std::span<T> sums = gradients(array).subspan(static_cast<std::size_t>(own.begin - kept(array).begin),
                                                     static_cast<std::size_t>(own.end - own.begin));
  reduce_scatter(*replicas_, gradient, sums);
  if (sharding_ == Sharding::none) all_gather(*replicas_, std::span<const T>(sums), gradients(array));
}

template <class T>
void Weights<T>::reduce(std::size_t array, GradientSums<T>& gradient) {
  if (gradient.exact().empty()) return reduce(array, gradient.floats());
  require(sharding_ == Sharding::none, "exact sums of gradients are kept whole");
  for (std::size_t i = 0; i < gradient.exact().size(); ++i) {
    ExactRows& sums = gradient.exact()[i];
    const Parameter& p = layouts_[array].parameters()[i];
    const ExactFormat& format = sums.format();
    const Interval own = piece_of(sums.words().shape().seq, replicas_->rank(), replicas_->size());
    Tensor<float> of_own({1, 1, own.end - own.begin, format.words()});
    reduce_scatter<float>(*replicas_, sums.words().view().elements(), of_own.view().elements(),
                          format.words(), ExactMemory(format));
    const Tensor<float> values = exact_values(format, of_own.view());
    const Tensor<T> terms = converted<T>(values);
    all_gather(
        *replicas_, std::span<const T>(terms.view().elements()),
        gradients(array).subspan(static_cast<std::size_t>(p.begin), static_cast<std::size_t>(p.size())),
        format.dim);
  }
}

template class Weights<float>;
template class Weights<double>;

}  // namespace ring_attention::model
