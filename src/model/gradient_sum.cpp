#include "model/gradient_sum.hpp"

#include <type_traits>

#include "ring_attention/cpu/exact/kernel_term.hpp"

namespace ring_attention::model {

RowTiles::RowTiles(Isa of, const TokenRanges& tokens, const Tiling& tiling, Index all)
    : isa(of), exact(true), wide(2 * all > ExactFormat::most_terms) {
  for (const TokenTile& tile : tiles_of(tokens, tiling))
    tiles.push_back({tile.first, tile.first + tile.tokens.count});
}

void RowTiles::for_each(Index rows, const std::function<void(const Interval&)>& visit) const {
  if (!exact) return visit({0, rows});
  for (Index sequence = 0; sequence < rows; sequence += tiles.back().end)
    for (const Interval& tile : tiles) visit({sequence + tile.begin, sequence + tile.end});
}

template <class T>
GradientSum<T>::GradientSum(ExactRows& sums, Isa isa)
    : exact_(&sums), isa_(isa), shape_{1, 1, sums.words().shape().seq, sums.format().dim} {}

template <class T>
GradientSum<T> GradientSum<T>::rows(Index first, Index count) const {
  require(first >= 0 && first + count <= shape_.seq, "GradientSum: rows that it does not have");
  GradientSum some = *this;
  some.shape_.seq = count;
  some.first_ = first_ + first;
  if (exact_ == nullptr) some.floats_ = {floats_.data() + first * shape_.dim, some.shape_};
  return some;
}

template <class T>
void GradientSum<T>::add(const std::function<void(View<T>)>& add) const {
  if (exact_ == nullptr) return add(floats_);
  if constexpr (std::is_same_v<T, float>) {
    Tensor<T> term(shape_);
    add(term.view());
    add_exact_terms(kernels<float>(isa_).add_exact_terms, exact_->format(),
                    exact_->words().view().row(0, 0, first_).data(), shape_.seq, term.data());
  }
}

template <class T>
GradientSums<T>::GradientSums(const ParameterLayout& layout, const RowTiles& rows)
    : layout_(layout), isa_(rows.isa) {
  require(!rows.exact || std::is_same_v<T, float>, "exact sums are sums of floats");
  if (!rows.exact) floats_ = Tensor<T>({1, 1, 1, layout.size()});
  for (const Parameter& p : layout.parameters())
    if (rows.exact)
      exact_.emplace_back(Shape{1, 1, p.rows.end - p.rows.begin, p.columns.end - p.columns.begin}, rows.wide);
}

template <class T>
GradientSum<T> GradientSums<T>::operator()(const std::string& name) {
  if (exact_.empty()) return layout_.view(floats(), name);
  return {exact_[layout_.number(name)], isa_};
}

template class GradientSum<float>;
template class GradientSum<double>;
template class GradientSums<float>;
template class GradientSums<double>;

}  // namespace ring_attention::model
