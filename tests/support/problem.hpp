// An attention problem of any shape, its reference, and the one check against it. The templates of float and double are
// compiled once, in problem.cpp, and so are those of the other headers that have a .cpp file.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <string>

#include "ring_attention/attention/partial.hpp"
#include "ring_attention/attention/reference.hpp"
#include "ring_attention/core/compare.hpp"
#include "ring_attention/core/random.hpp"
#include "ring_attention/ring/placement.hpp"
#include "support/cases.hpp"

namespace ring_attention::test {

constexpr std::initializer_list<PlacementKind> placement_kinds{PlacementKind::contiguous,
                                                               PlacementKind::striped, PlacementKind::zigzag};

/// Those, and ranges that a Team deals to its ranks.
constexpr std::initializer_list<PlacementKind> placements_of_teams{
    PlacementKind::contiguous, PlacementKind::striped, PlacementKind::zigzag, PlacementKind::balanced};

/// What is computed. Queries and keys may differ in number.
struct Case {
  Index batch = 1;
  Index kv_heads = 2;
  Index group = 1;  // query heads that share a KV head
  Index queries = 8;
  Index keys = 8;
  Index dim = 4;
  Scoring scoring = {};
  Index bias_batch = 0, bias_heads = 0;  // of a dense bias, some of it -inf; 0: none
  Index block = 64;
  PlacementKind kind = PlacementKind::contiguous;  // on a ring
  Index spike_every = 0;
  std::uint64_t seed = 1;
  bool every_hop = true;  // of a ring; false: those that the mask needs
  Index value_dim = 0;    // columns of v; 0: dim

  [[nodiscard]] Shape q() const { return {batch, group * kv_heads, queries, dim}; }
  [[nodiscard]] KvShape kv() const {
    return {Shape{batch, kv_heads, keys, dim}, value_dim > 0 ? value_dim : dim};
  }
  [[nodiscard]] Shape out() const { return q().with_dim(kv().value_dim); }
  [[nodiscard]] std::optional<Shape> bias() const {
    return bias_batch > 0 ? std::optional(Shape{bias_batch, bias_heads, queries, keys}) : std::nullopt;
  }
};

/// Two sequences of 71 queries and 107 keys, with sinks. \param bias  its batches and heads; 0: none
Case with_everything(std::pair<Index, Index> bias, const Scoring& scoring, double dropout);

std::string to_string(const Case& c);

/// The arrays of a case in type T, and the results of dense attention in double for the same numbers.
template <class T>
struct Problem {
  Case what;
  Tensor<T> q, k, v;
  Reference want;
  Tensor<T> bias = {};  // empty: none
};

template <class T>
Problem<T> make_problem(const Case& what, Tensor<T> q, Tensor<T> k, Tensor<T> v, Tensor<T> bias = {});

/// One of about 16 entries is -inf.
template <class T>
Tensor<T> random_bias(const Case& what);

/// q, k and v.
template <class T>
std::array<Tensor<T>, 3> random_inputs(const Case& what);

template <class T>
Problem<T> make_problem(const Case& what);

/// Copies the tokens at `rows` of `whole` into `shard`, in memory order.
template <class T>
void copy_rows(View<T> shard, View<const T> whole, const TokenRanges& rows);

template <class T>
Tensor<T> rows_of(const Tensor<T>& whole, const TokenRanges& rows);

RowErrors rows_of(const RowErrors& whole, const TokenRanges& rows);

/// The inverse: the rows of `part` to the tokens at `rows` of `whole`.
template <class T>
void put_rows(Tensor<T>& whole, const Tensor<T>& part, const TokenRanges& rows);

/// The reference has no key for any of these rows, so that out = 0 is meant.
bool all_fully_masked(const Tensor<double>& lse, const Scoring& scoring = {});

/// Do `got`'s rows, which are at `rows` of the problem, agree with the reference?
template <class T>
testing::AssertionResult agrees(const AttentionResult<T>& got, const Problem<T>& problem,
                                const TokenRanges& rows);

template <class T>
testing::AssertionResult agrees(const AttentionResult<T>& got, const Problem<T>& problem);

/// The same bits in out and lse.
template <class T>
testing::AssertionResult same_bits(const AttentionResult<T>& a, const AttentionResult<T>& b);

/// Up to four documents, some of them empty. They may end before the keys do.
std::shared_ptr<const Documents> random_documents(Dice& dice, Index keys);

/// A case for a ring of `ranks`. Every second one is causal; the groups of query heads alternate.
Case random_case(Dice& dice, Index index, Index ranks);

}  // namespace ring_attention::test
