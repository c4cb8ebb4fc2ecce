// running_rings FOLDER: runs rings of the library, right ones and each mutant of tests/support, on threads, and writes what
// they return.
#include "diagnose/running_rings.hpp"

using namespace ring_attention;
using namespace ring_attention::diagnose;

namespace {

/// The cases of a ring of the library: all but those with padding.
const std::vector<Trial>& problems(PlacementKind placement) {
  static std::map<PlacementKind, std::vector<Trial>> made;
  if (!made.contains(placement))
    made.emplace(placement, problems_of({4, placement}, {"full", "causal", "gqa", "window", "documents",
                                                         "alibi", "bias", "sinks", "uneven", "large"}));
  return made.at(placement);
}

Ran ran(const std::string& name, const Running& ring, PlacementKind placement,
        const std::vector<std::string>& without = {}) {
  Ran result{name, {}};
  for (const Trial& problem : problems(placement))
    if (std::ranges::find(without, problem.the_case.name) == without.end())
      result.answers.push_back(answer_of(problem, ring));
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : "rings";
  int count = 0;
  const auto keep = [&](const Ran& ring) { save(ring, folder + "/" + std::to_string(count++)); };
  for (const PlacementKind placement : test::placement_kinds) {
    Running fast;
    fast.forward = [](const Trial&) { return test::make_forward<float, CpuEngine<float>>; };
    fast.backward = test::make_backward<float, CpuBackward<float>>;
    keep(ran("right", {}, placement));
    keep(ran("right", fast, placement));
  }
  for (const Wrong& wrong : wrong_forwards())
    keep(ran(wrong.name, wrong.ring, PlacementKind::contiguous, wrong.without));
  for (const Wrong& wrong : wrong_backwards())
    keep(ran(wrong.name, wrong.ring, PlacementKind::contiguous, wrong.without));
}
