// Lesson 12, beside the idea: an engine that applies the idea to every pair, and the mistakes that it can make.
#pragma once

#include <numeric>

#include "common/problem.hpp"
#include "mistakes.hpp"
#include "ring_attention/attention/backward.hpp"

namespace ring_attention::lesson_12 {

using lesson::Pair, lesson::Rules;

/// What a forward and a backward share: the pairs that are visible.
class Pairs {
 public:
  Pairs(const Rules& rules, Mistake mistake, const Ring& ring, bool backward)
      : rules_(rules), mistake_(mistake), ring_(ring), backward_(backward) {
    if (mistake == "no-offset") rules_.offset = 0;
    if (mistake == "seed-per-rank") rules_.dropout.seed += static_cast<std::uint64_t>(ring.rank);
  }

 protected:
  void begin(View<const double> q, const TokenRanges& ranges, View<const double> bias) {
    q_ = q;
    bias_ = bias;
    queries_ = positions(ranges);
  }

  /// Calls visit(local, key, s, factor) for each visible pair of a parcel: `local` says where it is in memory, `key` is
  /// the position of its key.
  template <class Visit>
  void each_pair(const KeyValue<double>& kv, const Progress& progress, Visit visit) {
    const std::vector<Index> keys = positions(kv.ranges);
    Rules rules = rules_;
    if (mistake_ == "seed-per-step")
      rules.dropout.seed += static_cast<std::uint64_t>(backward_ ? ring_.size - 1 - step_ : step_);
    const Shape& q = q_.shape();
    for (Index b = 0; b < q.batch; ++b)
      for (Index h = 0; h < q.heads; ++h)
        for (Index i = 0; i < q.seq; ++i) {
          for (Index j = 0; j < std::ssize(keys); ++j) {
            const Pair pair{b, h, queries_[static_cast<std::size_t>(i)], keys[static_cast<std::size_t>(j)]};
            const Pair local{b, h, i, j};
            if (!lesson::visible(rules, mistake_ == "local-mask" ? local : pair)) continue;
            visit(local, pair.key, score(pair, local, kv), dropped(rules, pair, local));
          }
          if (progress) progress();
        }
    arrived_ += std::ssize(keys);
    ++step_;
  }

  [[nodiscard]] Index kv_head(Index head, const Shape& kv) const {
    return head / (q_.shape().heads / kv.heads);
  }

  Rules rules_;
  Mistake mistake_;
  View<const double> q_, bias_;

 private:
  [[nodiscard]] double score(const Pair& pair, const Pair& local, const KeyValue<double>& kv) const {
    const auto q = q_.row(local.batch, local.head, local.query);
    const auto k = kv.k.row(local.batch, kv_head(local.head, kv.k.shape()), local.key);
    const double product = std::inner_product(q.begin(), q.end(), k.begin(), 0.0);
    const double* dense = bias_.size() == 0 ? nullptr : bias_.row(0, 0, local.query).data();
    if (mistake_ == "scaled-bias") return rules_.scale * (product + lesson::bias(rules_, pair, dense));
    if (mistake_ == "local-alibi")
      return rules_.scale * product + lesson::bias(rules_, local, nullptr) + (dense ? dense[pair.key] : 0);
    if (mistake_ == "local-columns" && dense != nullptr)
      return rules_.scale * product + lesson::bias(rules_, pair, nullptr) + dense[arrived_ + local.key];
    return rules_.scale * product + lesson::bias(rules_, pair, dense);
  }

  [[nodiscard]] double dropped(const Rules& rules, Pair pair, const Pair& local) const {
    if (!rules.dropout.drops()) return 1;
    if (mistake_ == "local-dropout") return lesson::factor(rules, local);
    if (mistake_ == "local-head") pair.head %= std::max(Index{1}, q_.shape().heads / 2);
    const double factor = lesson::factor(rules, pair);
    if (mistake_ == "scales-twice") return factor * factor;
    if (mistake_ == "no-scale") return factor > 0 ? 1 : 0;
    return factor;
  }

  Ring ring_;
  bool backward_;
  std::vector<Index> queries_;
  Index arrived_ = 0;  // keys of the steps before
  int step_ = 0;
};

class PairEngine : public Engine<double>, Pairs {
 public:
  PairEngine(const Rules& rules, Mistake mistake, const Ring& ring) : Pairs(rules, mistake, ring, false) {}

  void begin(View<const double> q, const TokenRanges& ranges, View<const double> bias) {
    Pairs::begin(q, ranges, bias);
    partial_ = Partial<double>::empty(q.shape());
  }

  void accumulate(const KeyValue<double>& kv, const Progress& progress) override {
    const bool every_step = mistake_ == "sink-every-step";
    Tensor<double> seen(q_.shape().per_row());
    each_pair(kv, progress, [&](const Pair& at, Index, double s, double factor) {
      seen.view()(at.batch, at.head, at.query) = 1;
      if (factor == 0 && (mistake_ == "drops-before-softmax" || mistake_ == "drops-the-sum")) return;
      if (mistake_ == "drops-before-softmax") factor = 1;
      const auto v = kv.v.row(at.batch, kv_head(at.head, kv.v.shape()), at.key);
      update(at.batch, at.head, at.query,
             [&](auto& state, auto o) { lesson::attend(state, o, s, factor, v); });
    });
    if (every_step || mistake_ == "sink-every-rank") add_sinks(every_step ? nullptr : &seen);
  }

  [[nodiscard]] AttentionResult<double> finish() override {
    if (mistake_ != "sink-every-step" && mistake_ != "sink-every-rank") add_sinks(nullptr);
    return ring_attention::finish(std::move(partial_));
  }

 private:
  template <class Change>
  void update(Index batch, Index head, Index query, Change change) {
    double &m = partial_.m.view()(batch, head, query), &l = partial_.l.view()(batch, head, query);
    SoftmaxState<double> state{m, l};
    change(state, partial_.o.view().row(batch, head, query));
    m = state.m;
    l = state.l;
  }

  /// To every row; for a mistake, to those which are not 0 in `only`.
  void add_sinks(const Tensor<double>* only) {
    if (rules_.sinks.empty()) return;
    const Shape& q = q_.shape();
    for (Index b = 0; b < q.batch; ++b)
      for (Index h = 0; h < q.heads; ++h)
        for (Index i = 0; i < q.seq; ++i)
          if (only == nullptr || only->view()(b, h, i) != 0)
            update(b, h, i, [&](auto& state, auto o) {
              lesson::add_sink(state, o, rules_.sinks[static_cast<std::size_t>(h)]);
            });
  }

  Partial<double> partial_;
};

class PairBackward : public BackwardEngine<double>, Pairs {
 public:
  PairBackward(const Rules& rules, Mistake mistake, const Ring& ring) : Pairs(rules, mistake, ring, true) {}

  void begin(const BackwardInputs<double>& forward, const TokenRanges& ranges) {
    Pairs::begin(forward.q, ranges, forward.bias);
    forward_ = forward;
    delta_ = row_dot(forward.grad_out, forward.out);
    grad_q_ = Tensor<double>(forward.q.shape());
    grad_bias_ = Tensor<double>(forward.bias.shape());
  }

  void accumulate(const KeyValue<double>& kv, const KeyValueGradient<double>& gradient,
                  const Progress& progress) override {
    const Shape& shape = kv.k.shape();
    each_pair(kv, progress, [&](const Pair& at, Index position, double s, double factor) {
      const Index g = kv_head(at.head, shape);
      const auto row = [&](const auto& array) { return array.row(at.batch, at.head, at.query); };
      const auto key = [&](const auto& array) { return array.row(at.batch, g, at.key); };
      const double p = rescale(s, row(forward_.lse)[0]);
      const auto grad_out = row(forward_.grad_out);
      const double grad_p = std::inner_product(grad_out.begin(), grad_out.end(), key(kv.v).begin(), 0.0);
      double ds = lesson::score_gradient(p, factor, grad_p, row(delta_.view())[0]);
      if (mistake_ == "masks-gradient" && factor == 0) ds = 0;
      for (Index d = 0; d < shape.dim; ++d) {
        const auto c = static_cast<std::size_t>(d);
        key(gradient.v)[c] += factor * p * grad_out[c];
        row(grad_q_.view())[c] += rules_.scale * ds * key(kv.k)[c];
        key(gradient.k)[c] += rules_.scale * ds * row(q_)[c];
      }
      const bool counts = mistake_ != "one-head-bias" || at.head == 0;
      if (grad_bias_.size() > 0 && counts)  // of all batches and heads: they share the bias
        grad_bias_.view()(0, 0, at.query, position) += ds;
    });
  }

  [[nodiscard]] Tensor<double> finish() override { return std::move(grad_q_); }
  [[nodiscard]] TermGradients<double> term_gradients() override { return {std::move(grad_bias_)}; }

 private:
  BackwardInputs<double> forward_;
  Tensor<double> delta_, grad_q_, grad_bias_;
};

}  // namespace ring_attention::lesson_12
