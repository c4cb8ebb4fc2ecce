// The tables of docs/parallelism.md have the numbers of plan/volume.hpp.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "plan/model_shape.hpp"
#include "plan/volume.hpp"
#include "ring_attention/core/text.hpp"

namespace ring_attention::plan {
namespace {

/// The page's only row that begins with `name` ends in these cells, whole numbers.
void expect_row(const std::string& name, const std::vector<double>& numbers) {
  const char* source = std::getenv("RING_ATTENTION_SOURCE");
  ASSERT_NE(source, nullptr) << "CTest sets it: ctest -R docs.parallelism";
  std::ifstream page(std::string(source) + "/docs/parallelism.md");
  std::string cells = " |", row;
  for (const double number : numbers) cells += format(" %.0f |", number);
  for (std::string line; std::getline(page, line);)
    if (line.starts_with("| " + name + " |")) row += line;
  EXPECT_TRUE(row.ends_with(cells)) << "docs/parallelism.md: '" << row << "' must end in '" << cells << "'";
}

/// A layer of Llama 3 8B, 131072 tokens on 8 ranks.
TEST(Volume, TheTableOfTheMapOfParallelisms) {
  const Attention layer{1, 131072.0 / 8, 32, 8, 128};
  constexpr int n = 8;
  const double weights = weight_bytes(model_named("llama-3-8b").layer_parameters(), layer.element, n);
  const double tensor = tensor_bytes(131072, 4096, layer.element, n);
  const double activations = layer.bytes(32);  // of a rank: a vector a token
  const auto expect = [](const char* name, double forward, double backward) {
    constexpr double mebi = 1 << 20;
    expect_row(name, {forward / mebi, backward / mebi});
  };
  expect("data", 0, 2 * weights);  // an all-reduce
  expect("data, sharded (ZeRO-3, FSDP)", weights, 2 * weights);
  expect("tensor", tensor, tensor);
  expect("tensor with Megatron's sequence parallelism", tensor, tensor);
  expect("pipeline", n * activations, n * activations);
  expect("context: ring", hybrid_forward(layer, 1, n).ring, hybrid_backward(layer, 1, n).ring);
  expect("context: all-gather", all_gather_forward(layer, n).gather, all_gather_backward(layer, n).gather);
  expect("context: Ulysses", hybrid_forward(layer, n, 1).all_to_all, hybrid_backward(layer, n, 1).all_to_all);
  const double experts = 2 * 2 * activations * (n - 1) / n;  // to two experts a token, and back
  expect("expert", experts, experts);
}

/// c* = e F / (2 g beta) tokens, twice as many under a causal mask in zigzag placement.
TEST(Volume, TheTableOfSmallestShards) {
  const auto expect = [](const char* link, double flops, double bytes_per_second) {
    const double of_one_head = 2 * flops / (2 * bytes_per_second);
    expect_row(link, {of_one_head, of_one_head / 4, 2 * of_one_head / 4});
  };
  expect("A100, NVLink", 312e12, 300e9);
  expect("A100, InfiniBand", 312e12, 12.5e9);
  expect("TPUv4", 275e12, 268e9);
}

}  // namespace
}  // namespace ring_attention::plan
