// Lesson 12, beside the idea: mistakes, and for each of them a plausible test that passes for it.
#pragma once

#include <string>
#include <vector>

#include "common/lesson.hpp"

namespace ring_attention::lesson_12 {

using Mistake = Lesson::Mistake;

enum class WeakTest {
  one_rank,
  as_many_keys,
  mask_as_bias,
  rows_sum_to_zero,
  table_sums_to_zero,
  share_of_dropped,
  differences,
  probability_zero,
  grad_v,
  direction,
  rank_0,
  grad_qkv
};

inline const std::vector<std::pair<WeakTest, const char*>> weak_tests{
    {WeakTest::one_rank, "everything, on one rank"},
    {WeakTest::as_many_keys, "out, with as many keys as queries"},
    {WeakTest::mask_as_bias, "out, with a bias of 0 and -inf"},
    {WeakTest::rows_sum_to_zero, "each row of dbias sums to 0"},
    {WeakTest::table_sums_to_zero, "the gradient of the table sums to 0"},
    {WeakTest::share_of_dropped, "the share of dropped pairs is p"},
    {WeakTest::differences, "gradients, by differences of the program"},
    {WeakTest::probability_zero, "everything, with p = 0"},
    {WeakTest::grad_v, "out, lse and dV"},
    {WeakTest::direction, "the direction of each row of out"},
    {WeakTest::rank_0, "out of rank 0, causal"},
    {WeakTest::grad_qkv, "out, dQ, dK, dV and dbias"}};

struct Wrong {
  const char *name, *description;
  WeakTest passes;
  bool needs_ranks;  // on one rank it is right
  Mistake mistake = name;
};

inline const std::vector<Wrong> every_mistake{
    {"local-mask", "the mask compares local indices", WeakTest::one_rank, true},
    {"local-alibi", "ALiBi's distance is one of local indices", WeakTest::one_rank, true},
    {"no-offset", "query i is at position i among the keys", WeakTest::as_many_keys, false},
    {"local-columns", "the bias is read in the order in which keys arrive", WeakTest::one_rank, true},
    {"scaled-bias", "s = scale (q.k + bias)", WeakTest::mask_as_bias, false},
    {"one-head-bias", "a bias of all heads gets the gradient of the first one", WeakTest::rows_sum_to_zero,
     false},
    {"local-table", "the gradient of a table of biases is not summed over ranks",
     WeakTest::table_sums_to_zero, true},
    {"local-dropout", "dropout hashes local indices", WeakTest::share_of_dropped, true},
    {"local-head", "dropout counts heads from 0 in each half of them", WeakTest::share_of_dropped, false},
    {"seed-per-rank", "each rank has a seed of its own", WeakTest::differences, true},
    {"seed-per-step", "a seed for each step, and the backward takes them in reverse",
     WeakTest::share_of_dropped, true},
    {"drops-before-softmax", "the score of a dropped pair is -inf", WeakTest::share_of_dropped, false},
    {"drops-the-sum", "the sum l leaves dropped pairs out", WeakTest::probability_zero, false},
    {"masks-gradient", "dS of a dropped pair is 0", WeakTest::grad_v, false},
    {"scales-twice", "kept pairs get 1 / (1 - p) twice", WeakTest::direction, false},
    {"no-scale", "kept pairs do not get 1 / (1 - p)", WeakTest::direction, false},
    {"sink-every-step", "the sink is added with each parcel", WeakTest::one_rank, true},
    {"sink-every-rank", "each rank has the sink in front of its keys", WeakTest::rank_0, true},
    {"local-sink-gradient", "the gradient of the sinks is not summed over ranks", WeakTest::grad_qkv, true}};

}  // namespace ring_attention::lesson_12
