/// \file
/// `ParameterLayout`: the parameters of a rank as flat arrays with named matrices in them.
///
/// One flat array a layer, and one for the embedding. What sums, shards, optimises, saves or differentiates sees spans.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "model/shape.hpp"
#include "ring_attention/core/error.hpp"
#include "ring_attention/core/tensor.hpp"

namespace ring_attention::model {

/// A matrix `all_rows x all_columns`, of which a rank of tensor parallelism has `rows x columns`: row-major in the flat array,
/// from `begin` on.
struct Parameter {
  std::string name;
  Index all_rows, all_columns;
  Interval rows, columns;
  double deviation = 0;        ///< of the normal numbers that it starts with; 0: it starts as ones
  bool decays = true;          ///< by the optimiser
  bool counts = true;          ///< in the norm of the gradient: once, where several tensor ranks have it
  bool kv_replicated = false;  ///< TensorPart::kv_replicas have it, too, each with a part of its gradient
  Index begin = 0;

  [[nodiscard]] Index size() const { return (rows.end - rows.begin) * (columns.end - columns.begin); }
  [[nodiscard]] Interval elements() const { return {begin, begin + size()}; }
};

/// The matrices of one flat array, one after the other.
class ParameterLayout {
 public:
  explicit ParameterLayout(std::vector<Parameter> parameters);

  [[nodiscard]] const std::vector<Parameter>& parameters() const { return parameters_; }
  [[nodiscard]] Index size() const { return size_; }

  /// Which of parameters() has a name. \throws Error for another name
  [[nodiscard]] std::size_t number(const std::string& name) const;
  /// The matrix of a name in a flat array, `[1, 1, rows, columns]`. \throws Error for another name
  template <class T>
  [[nodiscard]] View<T> view(std::span<T> flat, const std::string& name) const {
    const Parameter& p = parameters_[number(name)];
    require(std::ssize(flat) == size_, "ParameterLayout: an array of another length");
    return {flat.data() + p.begin, {1, 1, p.rows.end - p.rows.begin, p.columns.end - p.columns.begin}};
  }

 private:
  std::vector<Parameter> parameters_;
  Index size_ = 0;
};

/// norm_1, wq, wk, wv, wo, norm_2, w1, w2 of a rank: columns of wq, wk, wv and w1, and the rows of wo and w2 that they feed.
[[nodiscard]] ParameterLayout layer_layout(const ModelShape& shape, const TensorPart& part);
/// embedding and the last norm: whole on every rank.
[[nodiscard]] ParameterLayout embedding_layout(const ModelShape& shape, const TensorPart& part);
/// All of a model: the layers, then the embedding.
[[nodiscard]] std::vector<ParameterLayout> layouts(const ModelShape& shape, const TensorPart& part);

/// Elements `kept` of a flat array as they start. A number is a function of (seed, array, name, row, column of the whole
/// matrix): the same on every mesh.
/// \param array  the number of the layer; that of the layers for the embedding
template <class T>
void initialise(const ParameterLayout& layout, std::uint64_t seed, Index array, Interval kept,
                std::span<T> values);

}  // namespace ring_attention::model
