// Judges exercise 11c. Each key has a score of its own, so a wrong score says which key was there in its place.
#include <cmath>

#include "judge.hpp"
#include "ring_attention/cuda/check.hpp"

using namespace ring_attention;
using namespace ring_attention::lesson_11;

namespace {

constexpr int keys = 5 * tile - 20;

Finding examine() {
  const auto q = small_numbers(dim, 1), k = small_numbers(std::size_t{keys} * dim, 2);
  std::vector<double> want(keys);
  for (std::size_t key = 0; key < keys; ++key)
    for (std::size_t c = 0; c < dim; ++c)
      want[key] += double{__bfloat162float(q[c])} * __bfloat162float(k[key * dim + c]);
  std::vector<float> s(keys, std::nanf(""));
  tma_load({q.data(), k.data(), s.data(), keys}, nullptr);
  cuda::check(cudaStreamSynchronize(nullptr));

  Finding finding;
  finding.result.assign(s.begin(), s.end());
  for (std::size_t key = 0; key < keys && finding.right(); ++key) {
    const double got = finding.result[key];
    if (got == want[key]) continue;
    const std::string which = "the score of key " + std::to_string(key) + " is " + in_words(got);
    finding.wrong = which + " instead of " + in_words(want[key]);
    const bool is_next = key + tile < keys && got == want[key + tile];
    finding.race =
        which + (is_next
                     ? ", that of the same row of the next tile: which wait keeps the next load away until "
                       "all threads have read this tile?"
                     : ", which was in the buffer before this tile: which wait, with which parity, comes "
                       "before the reads?");
  }
  return finding;
}

}  // namespace

int main() {
  return judge("11c", "tma_load", examine,
               {{only_sometimes,
                 "a late thread finds the phase after the one for which it waits. What keeps the next load "
                 "away until all threads have read this tile?"},
                {"arrivals in one phase",
                 "`full` is for one arrival in a phase. Does one thread start the load, and do all "
                 "threads wait for it?"},
                {"more have come", "TMA counts all bytes of the box, also the zeros beyond the last key"}});
}
