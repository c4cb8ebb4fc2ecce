// Judges exercise 11d. Each tile has sums of its own, so a wrong sum says which tile was in the buffer.
#include <cmath>

#include "judge.hpp"
#include "ring_attention/cuda/check.hpp"

using namespace ring_attention;
using namespace ring_attention::lesson_11;

namespace {

constexpr std::size_t tiles = 7;

Finding examine() {
  const auto v = small_numbers(tiles * tile * dim, 1);
  std::vector<double> want(tiles * dim);
  for (std::size_t row = 0; row < tiles * tile; ++row)
    for (std::size_t c = 0; c < dim; ++c) want[row / tile * dim + c] += __bfloat162float(v[row * dim + c]);
  std::vector<float> sums(tiles * dim, std::nanf(""));
  producer_and_consumer({v.data(), sums.data(), static_cast<int>(tiles)}, nullptr);
  cuda::check(cudaStreamSynchronize(nullptr));

  Finding finding;
  finding.result.assign(sums.begin(), sums.end());
  for (std::size_t i = 0; i < want.size() && finding.right(); ++i) {
    const double got = finding.result[i];
    if (got == want[i]) continue;
    const std::size_t n = i / dim, column = i % dim;
    const std::string which = "the sum of tile " + std::to_string(n) + " is " + in_words(got);
    finding.wrong = which + " instead of " + in_words(want[i]);
    bool is_later = false;
    for (std::size_t later = n + 2; later < tiles; later += 2)
      is_later = is_later || got == want[later * dim + column];
    finding.race =
        which + (is_later
                     ? ", that of a later tile: the producer has filled the stage again too early. It waits "
                       "for `empty`, and a consumer arrives there after its reads"
                     : ", of what was in the stage before tile " + std::to_string(n) +
                           ": the consumer has not waited for `full`, or not for the phase of this round, or "
                           "the load "
                           "went to the other stage");
  }
  return finding;
}

}  // namespace

int main() {
  return judge("11d", "producer_and_consumer", examine,
               {{"arrivals in one phase of an mbarrier",
                 "the producer fills a stage again before the last load has ended. "
                 "Does it wait for `empty`, and a consumer for the parity of its round?"},
                {"thread 64 waits at an mbarrier, whose phase 0 has 0 of 64",
                 "the producer waits for a stage that no consumer has emptied. Does a consumer arrive at "
                 "`empty`, and does "
                 "the first wait for each stage return at once? Does `full` expect the bytes of one tile?"}});
}
