// mistaken_rings FOLDER [PLACEMENT]: runs a right ring and each one of ring_mistakes() on threads, and saves what they
// return: FOLDER/PLACEMENT/ID, where a right ring has the id "right".
#include "common/saved_cases.hpp"
#include "mistakes/mistaken_ring.hpp"
#include "support/run.hpp"

using namespace ring_attention;

namespace {

struct Named {
  const char* name;
  test::Case what;
};

/// As ring_attention_diagnose has them. Each has other arrays.
std::vector<Named> cases(PlacementKind placement) {
  test::Case causal{.kv_heads = 4, .queries = 24, .keys = 24, .dim = 16, .scoring = {0.25, Mask::causal()}};
  causal.kind = placement;
  std::vector<Named> all{{"gqa", causal}, {"window", causal}, {"documents", causal}, {"large", causal}};
  all[0].what.kv_heads = all[0].what.group = 2;
  all[1].what.scoring.mask.left = 4;
  all[2].what.scoring.mask.documents = std::make_shared<const Documents>(std::vector<Index>{0, 5, 14, 24});
  for (std::size_t i = 0; i < all.size(); ++i) all[i].what.seed = i + 1;
  return all;
}

/// In head 0 the lse of shards differ by more than 89; the scores of head 1 are near -10150, and exact.
void enlarge(Tensor<float>& q, Tensor<float>& k) {
  for (const auto& [array, size, first] : {std::tuple(&q, 8.0F, 200.0F), std::tuple(&k, 8.0F, -203.0F)})
    for (Index token = 0; token < q.shape().seq; ++token) {
      for (float& x : array->view().row(0, 0, token)) x *= size;
      for (float& x : array->view().row(0, 1, token)) x = std::round(4 * x) / 4;
      array->view()(0, 1, token) = first;
    }
}

test::TeamRun<float> run(const test::GradientProblem<float>& problem, const test::Team& team,
                         const RingMistake& mistake) {
  LoopbackWorld world(team.ranks());
  const CpuDevice<float> cpu;
  return test::run_threads<float>(problem, team, world, [&](const RankGrid& held) {
    const auto right = test::thread_links(world, held);
    MistakenLinks links(*right, mistake, held);
    const MistakenDevice device(cpu, mistake, held.ring.ring(held.rank), team.tokens(problem.what()).keys);
    return test::run_rank<float, float>(problem, team, device, links, held.rank);
  });
}

void save(const std::string& folder, PlacementKind placement, const RingMistake& mistake) {
  const test::Team team{.rings = 4};
  SavedCases saved(folder, {placement, team.ranks()});
  for (const auto& [name, what] : cases(placement)) {
    auto [q, k, v] = test::random_inputs<float>(what);
    if (name == std::string("large")) enlarge(q, k);
    const auto problem = test::make_gradient_problem<float>(
        test::make_problem<float>(what, std::move(q), std::move(k), std::move(v)),
        test::random_grad_out<float>(what));
    const auto got = run(problem, team, mistake);
    saved.add<float>(name, {{"q", problem.forward.q},
                            {"k", problem.forward.k},
                            {"v", problem.forward.v},
                            {"dout", problem.grad_out},
                            {"out", got.attended.out},
                            {"lse", got.attended.lse},
                            {"dq", got.gradients.q},
                            {"dk", got.gradients.k},
                            {"dv", got.gradients.v}});
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : "rings";
  for (const PlacementKind placement : test::placement_kinds) {
    if (argc > 2 && argv[2] != std::string(name(placement))) continue;
    const std::string here = folder + "/" + name(placement) + "/";
    save(here + "right", placement, ring_mistake(""));
    for (const RingMistake& mistake : ring_mistakes())
      save(here + std::string(mistake.id), placement, mistake);
  }
}
