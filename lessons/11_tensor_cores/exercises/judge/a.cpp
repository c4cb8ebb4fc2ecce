// Judges exercise 11a. Some queries do not see the first tile of keys, and the last tile is not whole.
#include <algorithm>
#include <cmath>

#include "emulator/machine.hpp"
#include "judge.hpp"
#include "ring_attention/cuda/check.hpp"

using namespace ring_attention;
using namespace ring_attention::lesson_11;

namespace {

constexpr int tokens = 100, left = 45, lanes = 32;
constexpr double infinity = __builtin_huge_val();

enum class Slip { none, o_stays, l_stays, one_lane, of_tile, m_stays };

struct Results {
  std::vector<double> out, lse;
};

// Attention in double, tile after tile, with a mistake.
Results attention(const Softmax& a, Slip slip) {
  Results results;
  for (int i = 0; i < a.queries; ++i) {
    double m = -infinity, l = 0;
    std::vector<double> o(dim);
    for (int first = 0; first < a.keys; first += lanes) {
      std::vector<double> s(lanes, -infinity);
      for (int key = std::max(first, i - a.left); key < std::min(first + lanes, i + 1); ++key) {
        double& score = s[static_cast<std::size_t>(key - first)] = 0;
        for (int c = 0; c < dim; ++c) score += double{a.scale} * a.q[i * dim + c] * a.k[key * dim + c];
      }
      const double of_tile = *std::ranges::max_element(s);
      const double top = slip == Slip::of_tile ? of_tile : std::max(m, of_tile),
                   from = top == -infinity ? 0 : top;
      const double keep = std::exp(m - from);
      if (slip != Slip::l_stays) l *= keep;
      for (double& x : o) x *= slip == Slip::o_stays ? 1 : keep;
      for (int j = 0; j < lanes && first + j < a.keys; ++j) {
        const double p = std::exp(s[static_cast<std::size_t>(j)] - from);
        if (slip != Slip::one_lane || j == 0) l += p;
        for (int c = 0; c < dim; ++c) o[static_cast<std::size_t>(c)] += p * a.v[(first + j) * dim + c];
      }
      if (slip != Slip::m_stays) m = top;
    }
    for (const double x : o) results.out.push_back(x / l);
    results.lse.push_back(m + std::log(l));
  }
  return results;
}

bool agree(const std::vector<double>& got, const std::vector<double>& want) {
  for (std::size_t i = 0; i < got.size(); ++i)
    if (!(std::abs(got[i] - want[i]) <= 1e-4 * std::max(1.0, std::abs(want[i]))) && got[i] != want[i] &&
        !(std::isnan(got[i]) && std::isnan(want[i])))
      return false;
  return true;
}

std::string wrong_in(const Results& got, const Softmax& a) {
  const Results want = attention(a, Slip::none);
  if (agree(got.out, want.out) && agree(got.lse, want.lse)) return "";
  const auto is = [&](Slip slip) {
    const Results other = attention(a, slip);
    return agree(got.lse, other.lse) && (slip == Slip::one_lane || agree(got.out, other.out));
  };
  if (is(Slip::o_stays))
    return "lse is right and out is not: o is a sum of exp(s - m), too, and must follow when m grows";
  if (is(Slip::l_stays)) return "l is not multiplied by exp(old m - new m) when m grows";
  if (is(Slip::one_lane)) return "l has the keys of this lane only: the sum over the lanes is missing";
  if (is(Slip::of_tile))
    return "m is the maximum of this tile alone: it must not fall below that of the tiles before";
  if (is(Slip::m_stays)) return "m is not set to the new maximum";
  for (int i = 0; i < a.queries; ++i)
    if (std::isnan(got.lse[static_cast<std::size_t>(i)]))
      return "lse of query " + std::to_string(i) + " is NaN" +
             (i - left >= lanes ? ": it sees no key of the first tile, and -inf - (-inf) is NaN" : "");
  for (std::size_t i = 0; i < got.lse.size(); ++i)
    if (!agree({got.lse[i]}, {want.lse[i]}))
      return "lse of query " + std::to_string(i) + " is " + in_words(got.lse[i]) + " instead of " +
             in_words(want.lse[i]);
  return "lse is right and out is not";
}

Finding examine() {
  emulator::Random random{1};
  const auto numbers = [&](float scale) {
    std::vector<float> x(std::size_t{tokens} * dim);
    for (float& number : x) number = scale * (static_cast<float>(random() % 2001) / 1000 - 1);
    return x;
  };
  const std::vector<float> q = numbers(4), k = numbers(4),
                           v = numbers(1);  // scores of some tens: the maximum matters
  std::vector<float> out(q.size()), lse(tokens);
  const Softmax a{q.data(), k.data(), v.data(), out.data(), lse.data(), tokens, tokens, left, 0.125F};
  running_softmax(a, nullptr);
  cuda::check(cudaStreamSynchronize(nullptr));
  const Results got{{out.begin(), out.end()}, {lse.begin(), lse.end()}};
  const std::string wrong = wrong_in(got, a);
  return {wrong, wrong, got.out};
}

}  // namespace

int main() { return judge("11a", "running_softmax", examine); }
