// How well the placements balance packed documents in CPU time, and how long the search for a balanced one takes.
// Prints two tables of Markdown.

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <numeric>

#include "ring_attention/core/mix.hpp"
#include "ring_attention/core/random.hpp"
#include "ring_attention/cpu/backward.hpp"
#include "ring_attention/cpu/engine.hpp"
#include "ring_attention/parallel/balance/balanced.hpp"

namespace ring_attention {
namespace {

constexpr int repetitions = 5;

/// Causal, of documents whose logarithms of lengths are nearly normal, some 670 tokens each.
Mask log_normal_documents(Index seq) {
  std::vector<Index> boundaries{0};
  for (std::uint64_t i = 0; boundaries.back() < seq; ++i) {
    double normal = -6;  // a sum of 12 uniform numbers
    for (std::uint64_t j = 0; j < 12; ++j) normal += static_cast<double>(mix(12 * i + j) >> 11U) * 0x1p-53;
    boundaries.push_back(
        std::min(seq, boundaries.back() + 32 + static_cast<Index>(std::exp(6.5 + 1.2 * normal))));
  }
  Mask mask = Mask::causal();
  mask.documents = std::make_shared<const Documents>(std::move(boundaries));
  return mask;
}

double cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

Tensor<float> random(const Shape& shape, std::uint64_t stream) {
  Tensor<float> array(shape);
  fill_random(array.view(), {.stream = stream});
  return array;
}

/// The CPU time of each rank, forward and backward, one rank after the other on this thread: the least of some runs.
std::vector<double> rank_seconds(const Placement& placement, const Mask& mask) {
  constexpr Index dim = 64;
  const Scoring scoring{1 / std::sqrt(static_cast<double>(dim)), mask};
  const auto ranks = static_cast<std::size_t>(placement.ranks());
  std::vector<double> least(ranks, 1e9);
  for (int i = 0; i < repetitions; ++i)
    for (int rank = 0; rank < placement.ranks(); ++rank) {
      const TokenRanges rows = placement.ranges(rank);
      const auto shape = [&](int of) { return Shape{1, 2, placement.tokens(of), dim}; };
      const Tensor<float> q = random(shape(rank), 1), grad_out = random(shape(rank), 2);
      double seconds = 0;
      const auto each_owner = [&](const auto& use) {
        for (int owner = 0; owner < placement.ranks(); ++owner) {
          const Tensor<float> k = random(shape(owner), 3), v = random(shape(owner), 4);
          Tensor<float> dk(k.shape()), dv(k.shape());
          const double begin = cpu_seconds();
          use(KeyValue<float>{k, v, placement.ranges(owner)}, KeyValueGradient<float>{dk, dv});
          seconds += cpu_seconds() - begin;
        }
      };
      CpuEngine<float> forward(scoring);
      forward.begin(q, rows);
      each_owner([&](const KeyValue<float>& kv, const auto&) { forward.accumulate(kv); });
      const AttentionResult<float> result = forward.finish();
      CpuBackward<float> backward(scoring);
      backward.begin({q, result.out, result.lse, grad_out}, rows);
      each_owner(
          [&](const KeyValue<float>& kv, const auto& gradients) { backward.accumulate(kv, gradients); });
      double& best = least[static_cast<std::size_t>(rank)];
      best = std::min(best, seconds);
    }
  return least;
}

void print_balance() {
  constexpr int ranks = 4;
  constexpr Index seq = 16384;
  const Mask mask = log_normal_documents(seq);
  std::printf(
      "| log-normal documents, %d tokens, %d ranks | CPU time of the busiest rank over the mean | counted |\n"
      "|---|---|---|\n",
      static_cast<int>(seq), ranks);
  for (const Placement& placement :
       {Placement(PlacementKind::contiguous, seq, ranks), Placement(PlacementKind::striped, seq, ranks),
        Placement(PlacementKind::zigzag, seq, ranks), balanced(seq, ranks, mask)}) {
    const std::vector<double> seconds = rank_seconds(placement, mask);
    const Balance balance = balance_of(placement, mask);
    std::printf("| %s, %.3f s in all | %.3f | %.3f |\n", name(placement.kind()).c_str(),
                std::accumulate(seconds.begin(), seconds.end(), 0.0),
                std::ranges::max(seconds) * ranks / std::accumulate(seconds.begin(), seconds.end(), 0.0),
                balance.relative(balance.busiest));
  }
}

void print_search(Index seq, int ranks) {
  const std::pair<const char*, Mask> masks[] = {{"causal", Mask::causal()},
                                                {"log-normal", log_normal_documents(seq)}};
  for (const auto& [word, mask] : masks) {
    const double cpu = cpu_seconds();
    const auto begin = std::chrono::steady_clock::now();
    const Placement placement = balanced(seq, ranks, mask);
    const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begin;
    const double seconds = cpu_seconds() - cpu;
    const Balance balance = balance_of(placement, mask);
    std::printf("| %s, %lld tokens, %d ranks | %.2f s | %.2f s | %.3f | %lld |\n", word,
                static_cast<long long>(seq), ranks, seconds, wall.count(), balance.relative(balance.finish),
                static_cast<long long>(balance.ranges));
  }
}

}  // namespace
}  // namespace ring_attention

int main() {
  using namespace ring_attention;
  print_balance();
  std::printf(
      "\n| search | CPU time | wall time | finish over an equal share | ranges |\n|---|---|---|---|---|\n");
  print_search(16384, 8);
  print_search(131072, 16);
  print_search(1048576, 64);
}
