// Judges exercise 11b. The numbers are small and whole, so every sum is exact: a wrong place shows as another product.
#include <algorithm>
#include <array>
#include <cmath>

#include "judge.hpp"
#include "ring_attention/cuda/check.hpp"

using namespace ring_attention;
using namespace ring_attention::lesson_11;

namespace {

constexpr std::size_t rows = 16, columns = 8;  // of s
using S = std::array<double, rows * columns>;

struct Coordinate {
  int row, column;
};

// Where register i of a lane has its first number, of q, of k and of s: as the kernel takes it.
struct Layout {
  Coordinate (*q)(int g, int t, int i);
  Coordinate (*k)(int g, int t, int i);
  Coordinate (*s)(int g, int t, int i);  // of each number
};
Coordinate of_q(int g, int t, int i) { return {g + 8 * (i % 2), 2 * t + 8 * (i / 2)}; }
Coordinate of_k(int g, int t, int i) { return {g, 2 * t + 8 * i}; }
Coordinate of_s(int g, int t, int i) { return {g + 8 * (i / 2), 2 * t + i % 2}; }

// What a kernel computes that takes `taken` for the layout.
S product(const std::vector<__nv_bfloat16>& q, const std::vector<__nv_bfloat16>& k, const Layout& taken) {
  S s;
  s.fill(std::nan(""));
  std::array<std::array<double, dim>, rows> a{};
  std::array<std::array<double, dim>, columns> b{};
  for (int first = 0; first < dim; first += 16)
    for (int lane = 0; lane < 32; ++lane)
      for (int i = 0; i < 8; ++i) {  // number i % 2 of register i / 2
        const int g = lane / 4, t = lane % 4;
        const auto copy = [&](auto& to, Coordinate is, Coordinate from, const auto& matrix) {
          const auto at = [&](const Coordinate& place) {
            return static_cast<std::size_t>(place.row) * dim +
                   static_cast<std::size_t>(first + place.column + i % 2);
          };
          to[at(is) / dim][at(is) % dim] = __bfloat162float(matrix[at(from) % matrix.size()]);
        };
        copy(a, of_q(g, t, i / 2), taken.q(g, t, i / 2), q);
        if (i < 4) copy(b, of_k(g, t, i / 2), taken.k(g, t, i / 2), k);
      }
  for (int lane = 0; lane < 32; ++lane)
    for (int i = 0; i < 4; ++i) {
      const Coordinate is = of_s(lane / 4, lane % 4, i), to = taken.s(lane / 4, lane % 4, i);
      double sum = 0;
      for (std::size_t c = 0; c < dim; ++c)
        sum += a[static_cast<std::size_t>(is.row)][c] * b[static_cast<std::size_t>(is.column)][c];
      s[static_cast<std::size_t>((to.row * columns + to.column) % std::ssize(s))] = sum;
    }
  return s;
}

// A way to take one of the three matrices; without words it is the right one.
struct Taken {
  Coordinate (*at)(int g, int t, int i);
  std::string words;
};
const std::vector<Taken> ways_of_q{
    {of_q, ""},
    {[](int g, int t, int i) { return Coordinate{g + 8 * (i / 2), 2 * t + 8 * (i % 2)}; },
     "a[1] and a[2] are exchanged: a[1] has row g + 8, a[2] has columns 2t + 8"},
    {[](int g, int t, int i) { return Coordinate{g + 8 * (i % 2), t + 8 * (i / 2)}; },
     "a register has two neighbours of q: those of lane t begin at column 2t, not at t"}};
const std::vector<Taken> ways_of_k{
    {of_k, ""},
    {[](int g, int t, int i) { return Coordinate{g, t + 8 * i}; },
     "a register has two neighbours of k: those of lane t begin at column 2t, not at t"},
    {[](int g, int t, int i) { return Coordinate{2 * t + i, g}; },
     "k is taken for B, but B is its transpose: lane g has key g, and its registers are columns of k"}};
const std::vector<Taken> ways_of_s{
    {of_s, ""},
    {[](int g, int t, int i) { return Coordinate{g + 8 * (i % 2), 2 * t + i / 2}; },
     "d[1] and d[2] are exchanged: d[0] and d[1] are neighbours in row g, d[2] and d[3] in row g + 8"},
    {[](int g, int t, int i) { return Coordinate{g + 8 * (i / 2), t + 4 * (i % 2)}; },
     "the columns of the result are 2t and 2t + 1, not t and t + 4"}};

// The mistakes that give exactly this result, in words; empty if there are none.
std::string mistakes_in(const std::vector<double>& result, const std::vector<__nv_bfloat16>& q,
                        const std::vector<__nv_bfloat16>& k) {
  for (const Taken& q_taken : ways_of_q)
    for (const Taken& k_taken : ways_of_k)
      for (const Taken& s_taken : ways_of_s) {
        if (!std::ranges::equal(product(q, k, {q_taken.at, k_taken.at, s_taken.at}), result)) continue;
        std::string all;
        for (const std::string& words : {q_taken.words, k_taken.words, s_taken.words})
          if (!words.empty()) all += (all.empty() ? "" : "; ") + words;
        return all;
      }
  return "";
}

Finding examine() {
  const auto q = small_numbers(rows * dim, 1), k = small_numbers(columns * dim, 2);
  std::vector<float> s(rows * columns, std::nanf(""));
  mma_fragment({q.data(), k.data(), s.data()}, nullptr);
  cuda::check(cudaStreamSynchronize(nullptr));
  Finding finding;
  finding.result.assign(s.begin(), s.end());
  const S want = product(q, k, {of_q, of_k, of_s});
  if (std::ranges::equal(want, finding.result)) return finding;
  finding.wrong = mistakes_in(finding.result, q, k);
  for (std::size_t i = 0; i < want.size() && finding.wrong.empty(); ++i)
    if (!(finding.result[i] == want[i]))
      finding.wrong = "s of query " + std::to_string(i / columns) + " and key " +
                      std::to_string(i % columns) + " is " + in_words(finding.result[i]) + " instead of " +
                      in_words(want[i]) + " (NaN: it was not written)";
  finding.race = finding.wrong;
  return finding;
}

}  // namespace

int main() { return judge("11b", "mma_fragment", examine); }
