// Engines behind virtual calls, so that the rings of the tests are compiled once and not once for every engine.
#pragma once

#include <functional>
#include <memory>
#include <utility>

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
using MakeForward = std::function<std::unique_ptr<AnyForward<T>>()>;

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
using MakeBackward = std::function<std::unique_ptr<AnyBackward<T>>()>;

/// Makes engines of the type E for a case.
template <class T, class E>
MakeForward<T> forward_engines(const Case& what) {
  struct Held final : AnyForward<T> {
    explicit Held(const Case& of) : engine(make_engine<E>(of.scoring, of.block)) {}
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
  return [&what] { return std::make_unique<Held>(what); };
}
template <class T, class E>
MakeBackward<T> backward_engines(const Case& what) {
  struct Held final : AnyBackward<T> {
    explicit Held(const Case& of) : engine(make_engine<E>(of.scoring, of.block)) {}
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
  return [&what] { return std::make_unique<Held>(what); };
}

}  // namespace ring_attention::test
