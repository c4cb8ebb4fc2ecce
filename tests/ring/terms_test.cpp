// A bias and sinks on a ring of the readable engines. (That all terms agree on all engines: ../conformance. Wrong terms:
// ../mutants.tsv.)

#include <gtest/gtest.h>

#include "ring_attention/parallel/cpu_devices.hpp"
#include "support/run.hpp"

namespace ring_attention::test {
namespace {

// The gradients of a row's scores, the sink's among them, sum to zero; so do those of a head.
TEST(RingTermSums, GradientsOfAHeadAndItsSinkSumToZero) {
  for (const PlacementKind kind : placement_kinds) {
    // Lengths that no number of ranks divides.
    Case what{.batch = 2,
              .kv_heads = 2,
              .group = 2,
              .queries = 11,
              .keys = 13,
              .dim = 3,
              .scoring = {0.6, Mask::causal(2)},
              .block = 3,
              .kind = kind};
    what.bias_batch = 2;
    what.bias_heads = 4;
    what.scoring.sinks = {0.5, -1, 0, 1};
    const auto problem = make_gradient_problem<double>(what);
    for (const int ranks : {1, 3, 5}) {
      const Gradients<double> got =
          run(problem, {.rings = ranks}, ReadableDevice<double>({}, what.block)).gradients;
      EXPECT_TRUE(agrees(got, problem));
      for (Index head = 0; head < 4; ++head) {
        double sum = got.sinks[static_cast<std::size_t>(head)], size = 0;
        for (Index batch = 0; batch < 2; ++batch)
          for (Index i = 0; i < Index{11} * 13; ++i) {
            sum += got.bias.view().head(batch, head)[i];
            size += std::abs(got.bias.view().head(batch, head)[i]);
          }
        EXPECT_LE(std::abs(sum), 1e-12 * size);
      }
    }
  }
}

}  // namespace
}  // namespace ring_attention::test
