// Engines behind virtual calls, so that the rings of the tests are compiled once and not once for every engine.
#pragma once

#include <memory>
#include <type_traits>

#include "ring_attention/attention/backward.hpp"
#include "ring_attention/cpu/backward.hpp"
#include "support/problem.hpp"

namespace ring_attention::test {

template <class T>
struct AnyForward {
  virtual ~AnyForward() = default;
  virtual void begin(View<const T> q, const TokenRanges& ranges, View<const T> bias) = 0;
  virtual void accumulate(const KeyValue<T>& kv, const Progress& progress) = 0;
  virtual AttentionResult<T> finish() = 0;
};

template <class T>
struct AnyBackward {
  virtual ~AnyBackward() = default;
  virtual void begin(const ForwardResult<T>& forward, const TokenRanges& ranges) = 0;
  virtual void accumulate(const KeyValue<T>& kv, const KeyValueGradient<T>& gradient,
                          const Progress& progress) = 0;
  virtual Tensor<T> finish() = 0;
  virtual Tensor<T> bias_gradient() = 0;
};

template <class T>
using MakeForward = std::unique_ptr<AnyForward<T>> (*)(const Scoring& scoring, Index block);
template <class T>
using MakeBackward = std::unique_ptr<AnyBackward<T>> (*)(const Scoring& scoring, Index block);

/// What rules of a forward like StandardRules are in type T.
template <class T>
struct AnyRules {
  T initial_max;
  T (*rescale)(T from, T to);
  void (*merge_row)(SoftmaxState<T>& state, std::span<T> o, const SoftmaxState<T>& state_b,
                    std::span<const T> o_b);
  Index (*kv_head)(Index head, Index group);
  void (*drop)(T& p, T& l, T factor);
};
template <class T, class Rules>
inline const AnyRules<T> any_rules{Rules::template initial_max<T>, Rules::template rescale<T>,
                                   Rules::template merge_row<T>, Rules::kv_head, Rules::template drop<T>};

/// The same for rules of a backward like StandardGradientRules.
template <class T>
struct AnyGradientRules {
  Index (*kv_head)(Index head, Index group);
  T (*query_scale)(T scale);
  T (*key_scale)(T scale);
  T (*score_gradient)(T p, T grad_p, T delta, T factor);
};
template <class T, class Rules>
inline const AnyGradientRules<T> any_gradient_rules{Rules::kv_head, Rules::template query_scale<T>,
                                                    Rules::template key_scale<T>,
                                                    Rules::template score_gradient<T>};

/// The readable engines with these rules: the engines are compiled once and not once for every mutant of their rules.
template <class T>
std::unique_ptr<AnyForward<T>> forward_with(const AnyRules<T>& rules, const Scoring& scoring, Index block);
template <class T>
std::unique_ptr<AnyBackward<T>> backward_with(const AnyGradientRules<T>& rules, const Scoring& scoring,
                                              Index block);

/// The rules of a readable engine, unless they are the right ones.
template <class Engine>
struct OtherRules : std::false_type {};
template <class T, class Rules>
  requires(!std::is_same_v<Rules, StandardRules>)
struct OtherRules<BlockwiseEngine<T, Rules>> : std::true_type {
  static constexpr const AnyRules<T>& rules = any_rules<T, Rules>;
};
template <class T, class Rules>
  requires(!std::is_same_v<Rules, StandardGradientRules>)
struct OtherRules<BlockwiseBackward<T, Rules>> : std::true_type {
  static constexpr const AnyGradientRules<T>& rules = any_gradient_rules<T, Rules>;
};

/// An engine of type E.
template <class T, class E>
std::unique_ptr<AnyForward<T>> any_forward(const Scoring& scoring, Index block) {
  if constexpr (OtherRules<E>::value) {
    return forward_with(OtherRules<E>::rules, scoring, block);
  } else {
    struct Held final : AnyForward<T> {
      Held(const Scoring& of, Index tile) : engine(make_engine<E>(of, tile)) {}
      void begin(View<const T> q, const TokenRanges& ranges, View<const T> bias) override {
        if constexpr (requires { engine.begin(q, ranges, bias); })
          engine.begin(q, ranges, bias);
        else
          engine.begin(q, ranges);
      }
      void accumulate(const KeyValue<T>& kv, const Progress& progress) override {
        engine.accumulate(kv, progress);
      }
      AttentionResult<T> finish() override { return engine.finish(); }
      E engine;
    };
    return std::make_unique<Held>(scoring, block);
  }
}
template <class T, class E>
std::unique_ptr<AnyBackward<T>> any_backward(const Scoring& scoring, Index block) {
  if constexpr (OtherRules<E>::value) {
    return backward_with(OtherRules<E>::rules, scoring, block);
  } else {
    struct Held final : AnyBackward<T> {
      Held(const Scoring& of, Index tile) : engine(make_engine<E>(of, tile)) {}
      void begin(const ForwardResult<T>& forward, const TokenRanges& ranges) override {
        engine.begin(forward, ranges);
      }
      void accumulate(const KeyValue<T>& kv, const KeyValueGradient<T>& gradient,
                      const Progress& progress) override {
        engine.accumulate(kv, gradient, progress);
      }
      Tensor<T> finish() override { return engine.finish(); }
      Tensor<T> bias_gradient() override { return engine.bias_gradient(); }
      E engine;
    };
    return std::make_unique<Held>(scoring, block);
  }
}

/// A forward engine and a backward engine.
template <class T>
struct Engines {
  MakeForward<T> forward;
  MakeBackward<T> backward;
};
template <class T>
inline constexpr Engines<T> fast_engines{any_forward<T, CpuEngine<T>>, any_backward<T, CpuBackward<T>>};
template <class T>
inline constexpr Engines<T> readable_engines{any_forward<T, BlockwiseEngine<T>>,
                                             any_backward<T, BlockwiseBackward<T>>};

extern template std::unique_ptr<AnyForward<float>> any_forward<float, CpuEngine<float>>(const Scoring&,
                                                                                        Index);
extern template std::unique_ptr<AnyForward<double>> any_forward<double, CpuEngine<double>>(const Scoring&,
                                                                                           Index);
extern template std::unique_ptr<AnyForward<float>> any_forward<float, BlockwiseEngine<float>>(const Scoring&,
                                                                                              Index);
extern template std::unique_ptr<AnyForward<double>> any_forward<double, BlockwiseEngine<double>>(
    const Scoring&, Index);
extern template std::unique_ptr<AnyBackward<float>> any_backward<float, CpuBackward<float>>(const Scoring&,
                                                                                            Index);
extern template std::unique_ptr<AnyBackward<double>> any_backward<double, CpuBackward<double>>(const Scoring&,
                                                                                               Index);
extern template std::unique_ptr<AnyBackward<float>> any_backward<float, BlockwiseBackward<float>>(
    const Scoring&, Index);
extern template std::unique_ptr<AnyBackward<double>> any_backward<double, BlockwiseBackward<double>>(
    const Scoring&, Index);

}  // namespace ring_attention::test
