#include "model/embedding.hpp"

#include <algorithm>
#include <cmath>

#include "model/products.hpp"
#include "model/rms_norm.hpp"

namespace ring_attention::model {
namespace {

constexpr Index rows_at_once = 256;  // labelled rows with their logits in memory

Interval all_rows(const Examples& examples) { return {0, std::ssize(examples.token)}; }

/// Calls join(row, first column, columns, token) for each token that is in some rows: itself, and with the shift the one
/// before.
void for_each_part(const ModelShape& shape, const Examples& examples, const Interval& rows, auto join) {
  const Index own = shape.token_shift ? shape.width / 2 : shape.width;
  for (Index row = rows.begin; row < rows.end; ++row) {
    const auto at = static_cast<std::size_t>(row);
    join(row, Index{0}, own, examples.token[at]);
    if (shape.token_shift && examples.previous[at] != Task::none)
      join(row, own, shape.width - own, examples.previous[at]);
  }
}

/// The first `most` rows of `some` that have a label. `some` begins after them in the end.
std::vector<std::size_t> labelled_rows(const Examples& examples, Interval& some, Index most) {
  std::vector<std::size_t> rows;
  for (; some.begin < some.end && std::ssize(rows) < most; ++some.begin)
    if (const auto row = static_cast<std::size_t>(some.begin); examples.label[row] != Task::none)
      rows.push_back(row);
  return rows;
}

/// Some labelled rows on their way to the loss.
template <class T>
struct Answers {
  /// \param rows  which of `all`
  Answers(const ModelShape& shape, const EmbeddingParameters<const T>& weights, View<const T> all,
          const std::vector<std::size_t>& rows, Isa isa)
      : x({1, 1, std::ssize(rows), shape.width}),
        n(x.shape()),
        logits({1, 1, std::ssize(rows), shape.classes}) {
    for (std::size_t i = 0; i < rows.size(); ++i)
      std::copy_n(all.data() + static_cast<Index>(rows[i]) * shape.width, shape.width,
                  x.data() + static_cast<Index>(i) * shape.width);
    rms_norm<T>(x, weights.norm, n);
    add_input_gradient<T>(n, classes(shape, weights.embedding), logits, isa);  // n E^T
    const T scale = logit_scale(shape);
    for (T& logit : logits.view().elements()) logit *= scale;
  }

  /// The rows of E that are answers.
  static View<const T> classes(const ModelShape& shape, const View<const T>& embedding) {
    return {embedding.data() + shape.first_class * shape.width, {1, 1, shape.classes, shape.width}};
  }
  static T logit_scale(const ModelShape& shape) {
    return static_cast<T>(1 / std::sqrt(static_cast<double>(shape.width)));
  }

  Tensor<T> x, n, logits;
};

/// Adds a row to the score and leaves p = softmax(logits) in its place.
/// \param unit  of the loss: sums of its multiples are exact up to 2^53 units; 0: none
template <class T>
void add_row(Score& score, std::span<T> logits, Index label, double unit) {
  const auto largest = std::ranges::max_element(logits);
  score.labels += 1;
  score.correct += largest - logits.begin() == label ? 1 : 0;
  const T most = *largest, of_label = logits[static_cast<std::size_t>(label)];
  T sum = 0;
  for (T& number : logits) {
    number = std::exp(number - most);
    sum += number;
  }
  for (T& number : logits) number /= sum;
  const auto loss = static_cast<double>(most + std::log(sum) - of_label);
  score.loss += unit > 0 ? std::rint(loss / unit) * unit : loss;
}

/// Calls visit(rows, answers) for the labelled rows, some at a time; the logits have become probabilities.
template <class T>
Score for_each_answer(const ModelShape& shape, const EmbeddingParameters<const T>& weights,
                      const Examples& examples, View<const T> x, const RowTiles& tiles, auto visit) {
  Score score;
  tiles.for_each(std::ssize(examples.label), [&](Interval some) {
    while (some.begin < some.end) {
      const Index most = tiles.exact ? some.end - some.begin : rows_at_once;  // a term for each tile
      const std::vector<std::size_t> rows = labelled_rows(examples, some, most);
      if (rows.empty()) continue;
      Answers<T> answers(shape, weights, x, rows, tiles.isa);
      for (std::size_t i = 0; i < rows.size(); ++i)
        add_row(score, answers.logits.view().row(0, 0, static_cast<Index>(i)), examples.label[rows[i]],
                tiles.exact ? 0x1p-30 : 0);
      visit(rows, answers);
    }
  });
  return score;
}

}  // namespace

template <class T>
Tensor<T> embed(const ModelShape& shape, View<const T> embedding, const Examples& examples) {
  Tensor<T> x({examples.sequences, 1, examples.tokens, shape.width});
  for_each_part(shape, examples, all_rows(examples),
                [&](Index row, Index column, Index columns, Index token) {
                  std::copy_n(embedding.data() + token * shape.width + column, columns,
                              x.data() + row * shape.width + column);
                });
  return x;
}

template <class T>
void add_embedding_gradient(const ModelShape& shape, const Examples& examples, View<const T> grad_x,
                            const GradientSum<T>& grad_embedding, const RowTiles& tiles) {
  // forward: x[row] = parts of E[token]; so now dE[token] += the same parts of dx[row].
  tiles.for_each(std::ssize(examples.token), [&](const Interval& some) {
    grad_embedding.add([&](View<T> to) {
      for_each_part(shape, examples, some, [&](Index row, Index column, Index columns, Index token) {
        const T* term = grad_x.data() + row * shape.width + column;
        T* sum = to.data() + token * shape.width + column;
        for (Index i = 0; i < columns; ++i) sum[i] += term[i];
      });
    });
  });
}

template <class T>
Score answer(const ModelShape& shape, const EmbeddingParameters<const T>& weights, const Examples& examples,
             View<const T> x, const RowTiles& tiles) {
  return for_each_answer<T>(shape, weights, examples, x, tiles, [](const auto&, const auto&) {});
}

template <class T>
Score answer_gradient(const ModelShape& shape, const EmbeddingParameters<const T>& weights,
                      const Examples& examples, View<const T> x, double labels_of_all,
                      const GradientSum<T>& grad_embedding, const GradientSum<T>& grad_norm, View<T> grad_x,
                      const RowTiles& tiles) {
  std::ranges::fill(grad_x.elements(), T{0});
  const GradientSum<T> grad_classes = grad_embedding.rows(shape.first_class, shape.classes);
  return for_each_answer<T>(shape, weights, examples, x, tiles, [&](const auto& rows, Answers<T>& answers) {
    // forward: loss = (log sum e^logit - logit of the label) / labels; so now dlogit = (p - [label]) / labels.
    // forward: logits = scale n E^T; so now dn = scale dlogits E and dE += scale dlogits^T n.
    const T scale = static_cast<T>(1 / labels_of_all) * Answers<T>::logit_scale(shape);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::span<T> p = answers.logits.view().row(0, 0, static_cast<Index>(i));
      p[static_cast<std::size_t>(examples.label[rows[i]])] -= 1;
      for (T& number : p) number *= scale;
    }
    Tensor<T> grad_n(answers.n.shape()), grad_rows(answers.n.shape());
    multiply<T>(answers.logits, Answers<T>::classes(shape, weights.embedding), grad_n, tiles.isa);
    add_weight_gradient<T>(answers.logits, answers.n, grad_classes, tiles.isa);
    add_rms_norm_gradient<T>(answers.x, weights.norm, grad_n, grad_rows, grad_norm);
    for (std::size_t i = 0; i < rows.size(); ++i)
      std::copy_n(grad_rows.data() + static_cast<Index>(i) * shape.width, shape.width,
                  grad_x.data() + static_cast<Index>(rows[i]) * shape.width);
  });
}

#define RING_ATTENTION_INSTANTIATE(T)                                                            \
  template Tensor<T> embed(const ModelShape&, View<const T>, const Examples&);                   \
  template void add_embedding_gradient(const ModelShape&, const Examples&, View<const T>,        \
                                       const GradientSum<T>&, const RowTiles&);                  \
  template Score answer(const ModelShape&, const EmbeddingParameters<const T>&, const Examples&, \
                        View<const T>, const RowTiles&);
RING_ATTENTION_INSTANTIATE(float)
RING_ATTENTION_INSTANTIATE(double)
#undef RING_ATTENTION_INSTANTIATE
template Score answer_gradient(const ModelShape&, const EmbeddingParameters<const float>&, const Examples&,
                               View<const float>, double, const GradientSum<float>&,
                               const GradientSum<float>&, View<float>, const RowTiles&);
template Score answer_gradient(const ModelShape&, const EmbeddingParameters<const double>&, const Examples&,
                               View<const double>, double, const GradientSum<double>&,
                               const GradientSum<double>&, View<double>, const RowTiles&);

}  // namespace ring_attention::model
