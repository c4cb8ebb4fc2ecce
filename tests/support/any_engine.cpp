#include "support/any_engine.hpp"

namespace ring_attention::test {
namespace {

/// The rules of the engine that computes on this thread.
template <class T>
thread_local const AnyRules<T>* rules_now = nullptr;
template <class T>
thread_local const AnyGradientRules<T>* gradient_rules_now = nullptr;

template <class T>
struct RulesNow {
  struct InitialMax {
    operator T() const { return rules_now<T>->initial_max; }  // NOLINT: stands for a number
  };
  template <class>
  static constexpr InitialMax initial_max{};

  template <class>
  static T rescale(T from, T to) {
    return rules_now<T>->rescale(from, to);
  }
  static void merge_row(SoftmaxState<T>& state, std::span<T> o, const SoftmaxState<T>& state_b,
                        std::span<const T> o_b) {
    rules_now<T>->merge_row(state, o, state_b, o_b);
  }
  static Index kv_head(Index head, Index group) { return rules_now<T>->kv_head(head, group); }
  static void drop(T& p, T& l, T factor) { rules_now<T>->drop(p, l, factor); }
};

template <class T>
struct GradientRulesNow {
  static Index kv_head(Index head, Index group) { return gradient_rules_now<T>->kv_head(head, group); }
  static T query_scale(T scale) { return gradient_rules_now<T>->query_scale(scale); }
  static T key_scale(T scale) { return gradient_rules_now<T>->key_scale(scale); }
  static T score_gradient(T p, T grad_p, T delta, T factor) {
    return gradient_rules_now<T>->score_gradient(p, grad_p, delta, factor);
  }
};

template <class T>
class ForwardWith final : public AnyForward<T> {
 public:
  ForwardWith(const AnyRules<T>& rules, const Scoring& scoring, Index block)
      : rules_(rules), engine_(scoring, block) {}
  void begin(View<const T> q, const TokenRanges& ranges, View<const T> bias) override {
    rules_now<T> = &rules_;
    engine_.begin(q, ranges, bias);
  }
  void accumulate(const KeyValue<T>& kv, const Progress& progress) override {
    rules_now<T> = &rules_;
    engine_.accumulate(kv, progress);
  }
  AttentionResult<T> finish() override { return engine_.finish(); }

 private:
  const AnyRules<T>& rules_;
  BlockwiseEngine<T, RulesNow<T>> engine_;
};

template <class T>
class BackwardWith final : public AnyBackward<T> {
 public:
  BackwardWith(const AnyGradientRules<T>& rules, const Scoring& scoring, Index block)
      : rules_(rules), engine_(scoring, block) {}
  void begin(const ForwardResult<T>& forward, const TokenRanges& ranges) override {
    engine_.begin(forward, ranges);
  }
  void accumulate(const KeyValue<T>& kv, const KeyValueGradient<T>& gradient,
                  const Progress& progress) override {
    gradient_rules_now<T> = &rules_;
    engine_.accumulate(kv, gradient, progress);
  }
  Tensor<T> finish() override { return engine_.finish(); }
  Tensor<T> bias_gradient() override { return engine_.bias_gradient(); }

 private:
  const AnyGradientRules<T>& rules_;
  BlockwiseBackward<T, GradientRulesNow<T>> engine_;
};

}  // namespace

template <class T>
std::unique_ptr<AnyForward<T>> forward_with(const AnyRules<T>& rules, const Scoring& scoring, Index block) {
  return std::make_unique<ForwardWith<T>>(rules, scoring, block);
}
template <class T>
std::unique_ptr<AnyBackward<T>> backward_with(const AnyGradientRules<T>& rules, const Scoring& scoring,
                                              Index block) {
  return std::make_unique<BackwardWith<T>>(rules, scoring, block);
}

template std::unique_ptr<AnyForward<float>> forward_with(const AnyRules<float>&, const Scoring&, Index);
template std::unique_ptr<AnyForward<double>> forward_with(const AnyRules<double>&, const Scoring&, Index);
template std::unique_ptr<AnyBackward<float>> backward_with(const AnyGradientRules<float>&, const Scoring&,
                                                           Index);
template std::unique_ptr<AnyBackward<double>> backward_with(const AnyGradientRules<double>&, const Scoring&,
                                                            Index);
template std::unique_ptr<AnyForward<float>> any_forward<float, CpuEngine<float>>(const Scoring&, Index);
template std::unique_ptr<AnyForward<double>> any_forward<double, CpuEngine<double>>(const Scoring&, Index);
template std::unique_ptr<AnyForward<float>> any_forward<float, BlockwiseEngine<float>>(const Scoring&, Index);
template std::unique_ptr<AnyForward<double>> any_forward<double, BlockwiseEngine<double>>(const Scoring&,
                                                                                          Index);
template std::unique_ptr<AnyBackward<float>> any_backward<float, CpuBackward<float>>(const Scoring&, Index);
template std::unique_ptr<AnyBackward<double>> any_backward<double, CpuBackward<double>>(const Scoring&,
                                                                                        Index);
template std::unique_ptr<AnyBackward<float>> any_backward<float, BlockwiseBackward<float>>(const Scoring&,
                                                                                           Index);
template std::unique_ptr<AnyBackward<double>> any_backward<double, BlockwiseBackward<double>>(const Scoring&,
                                                                                              Index);

}  // namespace ring_attention::test
