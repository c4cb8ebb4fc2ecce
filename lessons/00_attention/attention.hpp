/// \file
/// Lesson 00, the idea: attention as its formula says it, with all scores in memory.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

namespace ring_attention::lesson {

template <class T>
using Rows = std::vector<std::vector<T>>;  // a vector of numbers for each token

/// What a mutant replaces.
struct Choices {
  bool scale = true;       // scores are divided by sqrt(D)
  std::size_t future = 0;  // keys after its own that a causal query sees
};

/// How well a key fits a query: s = q . k / sqrt(D)
template <class T>
T score(const std::vector<T>& q, const std::vector<T>& k, const Choices& choices) {
  T sum = 0;
  for (std::size_t d = 0; d < q.size(); ++d) sum += q[d] * k[d];
  return choices.scale ? sum / T(std::sqrt(static_cast<double>(q.size()))) : sum;
}

/// Weights: positive numbers that sum to 1, p_j = e^{s_j} / sum_k e^{s_k}. (Lesson 01: where this formula breaks.)
template <class T>
std::vector<T> softmax(std::vector<T> s) {
  using std::exp;
  T sum = 0;
  for (T& x : s) {
    x = exp(x);
    sum += x;
  }
  for (T& x : s) x = x / sum;
  return s;
}

template <class T>
struct Attention {
  Rows<T> scores, weights;  // of each query: one number for each key that it sees
  Rows<T> out;
};

/// Attention of one head: each query gets a mean of the values, weighted by how well their keys fit.
/// \param q, k, v  S vectors of D numbers
/// \param causal   token i sees the tokens 0 .. i; else all
template <class T>
Attention<T> attention(const Rows<T>& q, const Rows<T>& k, const Rows<T>& v, bool causal,
                       const Choices& choices = {}) {
  Attention<T> result;
  for (std::size_t i = 0; i < q.size(); ++i) {
    const std::size_t seen = causal ? std::min(i + 1 + choices.future, k.size()) : k.size();
    std::vector<T> s, out(v[0].size(), T(0));
    for (std::size_t j = 0; j < seen; ++j) s.push_back(score(q[i], k[j], choices));
    const std::vector<T> p = softmax(s);
    for (std::size_t j = 0; j < seen; ++j)
      for (std::size_t d = 0; d < out.size(); ++d) out[d] += p[j] * v[j][d];
    result.scores.push_back(s);
    result.weights.push_back(p);
    result.out.push_back(out);
  }
  return result;
}

}  // namespace ring_attention::lesson
