// The backward alone: where parts of dK,dV go, how they add up, and which out and lse they are formed with.
#include "diagnose/mistakes/edits.hpp"

namespace ring_attention::diagnose {
namespace {

void dkdv_go_to(Rules& rules, int (*to)(const Turn&, int owner)) {
  rules.schedule.push_back([=](const Turn& turn, Steps& steps) {
    for (Step& step : steps) step.dk_to = step.dv_to = to(turn, step.dk_to);
  });
}

/// The sum of the last part only.
void overwrite(Matrix<double>& sum, const Matrix<double>& part, int) { sum = part; }

/// The query heads of a group whose dK,dV count.
void of_group(Rules& rules, double (*times)(Index number, Index group)) {
  rules.dkdv_of = [=](const Problem& problem, Index head) {
    const Index group = problem.the_case.group();
    return times(head % group, group);
  };
}

void scale_arrays(Rules& rules, const std::vector<Array>& which, double (*factor)(double ranks)) {
  rules.after_backward.push_back([=](const Problem& problem, const Turn&, Arrays& arrays) {
    for (const Array array : which)
      for (double& x : arrays[array].view().elements()) x *= factor(problem.job.ranks);
  });
}

double ranks(double of_job) { return of_job; }
double one_over_ranks(double of_job) { return 1 / of_job; }

/// (received, sent) taken for (dK, dV), and added: dK = dK + dV, and dV = the same of the rank before.
void pair_added(const Problem& problem, const Turn& turn, Arrays& arrays) {
  const Job& job = problem.job;
  const Index tokens = problem.the_case.tokens;
  Tensor<double> sum = arrays[Array::dk].clone();
  for (Index i = 0; i < sum.size(); ++i) sum.data()[i] += arrays[Array::dv].data()[i];
  for (int rank = 0; rank < job.ring(); ++rank) {
    const Placement placement(job.placement, tokens, job.ring());
    const std::vector<Index> here = positions(placement.ranges(rank));
    const std::vector<Index> there =
        positions(placement.ranges(Ring{rank, job.ring()}.owner(-turn.direction)));
    for (std::size_t i = 0; i < std::min(here.size(), there.size()); ++i)
      for (Index head = 0; head < sum.shape().heads; ++head)
        matrix(arrays[Array::dv].view(), 0, head).row(here[i]) = matrix(sum.view(), 0, head).row(there[i]);
  }
  arrays[Array::dk] = std::move(sum);
}

}  // namespace

std::vector<Edit> backward_edits() {
  return {
      {"dkdv-stay-local",
       [](Rules& rules) {
         rules.schedule.push_back([](const Turn& turn, Steps& steps) {
           for (Step& step : steps) step.dk_to = step.dv_to = turn.ring.rank;
         });
       }},
      {"hop-short",
       [](Rules& rules) {
         dkdv_go_to(rules, [](const Turn& turn, int owner) {
           return Ring{owner, turn.ring.size}.owner(turn.direction);
         });
       },
       directed},
      {"dkdv-own-only",
       [](Rules& rules) {
         dkdv_go_to(rules, [](const Turn& turn, int owner) {
           return owner == turn.ring.rank ? owner : Step::no_rank;
         });
       }},
      {"dkdv-overwritten", [](Rules& rules) { rules.add_dkdv = overwrite; }, directed},
      {"dq-overwritten", [](Rules& rules) { rules.add_dq = overwrite; }, directed},
      {"dq-own-step",
       [](Rules& rules) {
         rules.add_dq = [](Matrix<double>& sum, const Matrix<double>& part, int step) {
           if (step == 0) sum += part;
         };
       }},
      {"part-not-zeroed", [](Rules& rules) { rules.part_zeroed = false; }, directed},
      {"no-delta", [](Rules& rules) { rules.delta_from = Source::none; }},
      {"delta-own-shard", [](Rules& rules) { rules.delta_from = Source::own_shard; }},
      {"delta-of-step", [](Rules& rules) { rules.delta_from = Source::step; }},
      {"lse-own-shard-backward", [](Rules& rules) { rules.lse_from = Source::own_shard; }},
      {"lse-of-step", [](Rules& rules) { rules.lse_from = Source::step; }},
      {"dk-no-scale", [](Rules& rules) { rules.dk_factor = [](const Case& c) { return 1 / c.scale(); }; }},
      {"dq-no-scale", [](Rules& rules) { rules.dq_factor = [](const Case& c) { return 1 / c.scale(); }; }},
      {"dk-scale-twice", [](Rules& rules) { rules.dk_factor = [](const Case& c) { return c.scale(); }; }},
      {"dq-scale-twice", [](Rules& rules) { rules.dq_factor = [](const Case& c) { return c.scale(); }; }},
      {"gqa-last-head",
       [](Rules& rules) {
         of_group(rules, [](Index number, Index group) { return number + 1 == group ? 1.0 : 0.0; });
       }},
      {"gqa-first-head",
       [](Rules& rules) { of_group(rules, [](Index number, Index) { return number == 0 ? 1.0 : 0.0; }); }},
      {"gqa-mean",
       [](Rules& rules) {
         of_group(rules, [](Index, Index group) { return 1 / static_cast<double>(group); });
       }},
      {"gqa-fold-groups",
       [](Rules& rules) {
         rules.dkdv_head = rules.kv_head;
         rules.kv_head = [](const Problem& problem, Index head) { return head % problem.the_case.kv_heads; };
       }},
      {"gqa-wrong-axis",
       [](Rules& rules) {
         rules.dkdv_head = [](const Problem& problem, Index head) {
           return head % problem.the_case.kv_heads;
         };
       }},
      {"dout-ones",
       [](Rules& rules) {
         rules.dout = [](const Slots&, const Problem&, const Place&, Index, Index) { return 1.0; };
       }},
      {"dout-order",
       [](Rules& rules) {
         rules.dout = [](const Slots& slots, const Problem& problem, const Place& place, Index head,
                         Index column) {
           const Index row = place.rank * slots.count() + place.slot;
           return row < slots.tokens() ? problem.dout.view()(0, head, row, column) : 0;
         };
       }},
      {"dkdv-exchanged",
       [](Rules& rules) {
         rules.after_backward.push_back([](const Problem&, const Turn&, Arrays& arrays) {
           std::swap(arrays[Array::dk], arrays[Array::dv]);
         });
       }},
      {"dkdv-pair-added", [](Rules& rules) { rules.after_backward.push_back(pair_added); }, directed},
      {"dkdv-over-ranks", [](Rules& rules) { scale_arrays(rules, {Array::dk, Array::dv}, one_over_ranks); }},
      {"dkdv-times-ranks", [](Rules& rules) { scale_arrays(rules, {Array::dk, Array::dv}, ranks); }},
      {"gradients-over-ranks",
       [](Rules& rules) { scale_arrays(rules, {Array::dq, Array::dk, Array::dv}, one_over_ranks); }},
      {"gradients-times-ranks",
       [](Rules& rules) { scale_arrays(rules, {Array::dq, Array::dk, Array::dv}, ranks); }},
      {"unguarded-backward", [](Rules& rules) { rules.guarded = false; }},
      {"dkdv-bf16", [](Rules& rules) { rules.dkdv_kept_in = Precision::bf16; }, directed},
      {"dq-bf16", [](Rules& rules) { rules.dq_kept_in = Precision::bf16; }, directed},
  };
}

}  // namespace ring_attention::diagnose
