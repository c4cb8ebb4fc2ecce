// Which K,V a rank computes with at which step, and whose it takes them to be.
#include "diagnose/mistakes/edits.hpp"

namespace ring_attention::diagnose {
namespace {

/// `change` gets each step, its number, and the right step of the number before and after it.
void each_step(Rules& rules, void (*change)(Step& step, const Step& before, const Step& after)) {
  rules.schedule.push_back([=](const Turn&, Steps& steps) {
    const Steps right = steps;
    for (std::size_t i = 0; i < steps.size(); ++i)
      change(steps[i], right[i == 0 ? 0 : i - 1], right[i + 1 == right.size() ? i : i + 1]);
  });
}

/// Takes the keys of step `t` to be at the positions of the rank that is `hops(t)` hops behind.
void positions_of(Rules& rules, int (*hops)(int step)) {
  rules.schedule.push_back([=](const Turn& turn, Steps& steps) {
    for (std::size_t i = 0; i < steps.size(); ++i) steps[i].positions = turn.owner(hops(static_cast<int>(i)));
  });
}

void of_steps(Rules& rules, void (*change)(Steps&)) {
  rules.schedule.push_back([=](const Turn&, Steps& steps) {
    if (steps.size() > 1) change(steps);
  });
}

}  // namespace

std::vector<Edit> schedule_edits() {
  return {
      {"steps-short", [](Rules& rules) { of_steps(rules, [](Steps& steps) { steps.pop_back(); }); },
       directed},
      {"skip-own", [](Rules& rules) { of_steps(rules, [](Steps& steps) { steps.erase(steps.begin()); }); }},
      {"extra-step",
       [](Rules& rules) { of_steps(rules, [](Steps& steps) { steps.push_back(steps.front()); }); }},
      {"no-ring", [](Rules& rules) { of_steps(rules, [](Steps& steps) { steps.resize(1); }); }},
      {"not-sent",
       [](Rules& rules) {
         rules.schedule.push_back([](const Turn& turn, Steps& steps) {
           for (Step& step : steps) step.k = step.v = turn.ring.rank;
         });
       }},
      {"k-stays",
       [](Rules& rules) {
         rules.schedule.push_back([](const Turn& turn, Steps& steps) {
           for (Step& step : steps) step.k = turn.ring.rank;
         });
       }},
      {"v-stays",
       [](Rules& rules) {
         rules.schedule.push_back([](const Turn& turn, Steps& steps) {
           for (Step& step : steps) step.v = turn.ring.rank;
         });
       }},
      {"early-swap",
       [](Rules& rules) {
         each_step(rules, [](Step& step, const Step&, const Step& after) { step.k = step.v = after.k; });
       },
       directed},
      {"step-before",
       [](Rules& rules) {
         each_step(rules, [](Step& step, const Step& before, const Step&) { step.k = step.v = before.k; });
       },
       directed},
      {"v-step-before",
       [](Rules& rules) {
         each_step(rules, [](Step& step, const Step& before, const Step&) { step.v = before.v; });
       },
       directed},
      {"owner-wrong-way", [](Rules& rules) { positions_of(rules, [](int step) { return -step; }); },
       directed},
      {"owner-off-by-one", [](Rules& rules) { positions_of(rules, [](int step) { return step + 1; }); },
       directed},
  };
}

}  // namespace ring_attention::diagnose
