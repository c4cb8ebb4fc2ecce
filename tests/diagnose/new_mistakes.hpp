// Thirty mistakes that are not in the list, written when the classifier was done. None of them may get the name of one
// that is.
#pragma once

#include <vector>

#include "diagnose/trials.hpp"

namespace ring_attention::diagnose {

struct NewMistake {
  const char* name;
  bool in_forward, in_backward;
  void (*edit)(Rules&);
};

inline void each_step(Rules& rules, void (*change)(const Turn&, Step&, int number)) {
  rules.schedule.push_back([=](const Turn& turn, Steps& steps) {
    for (std::size_t i = 0; i < steps.size(); ++i) change(turn, steps[i], static_cast<int>(i));
  });
}

inline const std::vector<NewMistake> new_mistakes{
    {"a query sees two keys after it", true, true,
     [](Rules& r) {
       r.causal = [](const Case& c, const Pair& p) {
         return !c.causal || p.key.position <= p.query.position + 2;
       };
     }},
    {"a query sees no key of its own shard but itself", true, true,
     [](Rules& r) {
       r.causal = [](const Case& c, const Pair& p) {
         if (!c.causal) return true;
         return p.on_one_rank() ? p.key.position == p.query.position : p.key.position <= p.query.position;
       };
     }},
    {"remote tiles see every second key", true, true,
     [](Rules& r) {
       r.causal = [](const Case& c, const Pair& p) {
         if (!c.causal) return true;
         return p.on_one_rank() ? p.key.position <= p.query.position
                                : (p.key.position <= p.query.position && p.key.slot % 2 == 0);
       };
     }},
    {"rank 0 has no mask", true, true,
     [](Rules& r) {
       r.causal = [](const Case& c, const Pair& p) {
         return !c.causal || p.query.rank == 0 || p.key.position <= p.query.position;
       };
     }},
    {"the first key of each shard is lost", true, true,
     [](Rules& r) {
       r.padding = [](const Case& c, const Pair& p) {
         return p.content.slot > 0 && p.content.position < c.tokens;
       };
     }},
    {"the last key of each shard is lost", true, true,
     [](Rules& r) {
       r.mask_positions.push_back([](const Slots& slots, Pair& p) {
         if (p.content.slot + 1 == slots.count()) p.content.position = slots.tokens();
       });
     }},
    {"the last rank skips its last step", true, true,
     [](Rules& r) {
       r.schedule.push_back([](const Turn& turn, Steps& steps) {
         if (turn.ring.rank + 1 == turn.ring.size) steps.back() = steps[steps.size() - 2];
       });
     }},
    {"K of the owner after next", true, true,
     [](Rules& r) {
       each_step(r, [](const Turn& turn, Step& step, int number) { step.k = turn.owner(number - 1); });
     }},
    {"V comes from the rank before the owner", true, true,
     [](Rules& r) {
       each_step(r, [](const Turn& turn, Step& step, int number) { step.v = turn.owner(number + 1); });
     }},
    {"rank 1 uses its own K,V in every step", true, true,
     [](Rules& r) {
       each_step(r, [](const Turn& turn, Step& step, int) {
         if (turn.ring.rank == 1) step.k = step.v = 1;
       });
     }},
    {"the scale is D^(-1/4)", true, true,
     [](Rules& r) { r.scale = [](const Case& c) { return std::sqrt(c.scale()); }; }},
    {"the scale is 1 / sqrt(2 D)", true, true,
     [](Rules& r) { r.scale = [](const Case& c) { return c.scale() / std::sqrt(2.0); }; }},
    {"the scale is 1 / D and scores are in base 2", true, true,
     [](Rules& r) { r.scale = [](const Case& c) { return c.scale() * 0.6931; }; }},
    {"the KV heads of two groups are exchanged", true, true,
     [](Rules& r) {
       r.kv_head = [](const Problem& p, Index h) { return p.the_case.kv_heads - 1 - h / p.the_case.group(); };
     }},
    {"head 0 has the K,V of head 1", true, true,
     [](Rules& r) {
       r.kv_head = [](const Problem& p, Index h) { return h == 0 ? Index{1} : h / p.the_case.group(); };
     }},
    {"sinks count twice", true, true, [](Rules& r) { r.sink_times = [](int, int) { return 2.0; }; }},
    {"l of a new step counts twice", true, false,
     [](Rules& r) {
       r.factors = [right = r.factors](double m, double n, double both) {
         Factors f = right(m, n, both);
         f.new_l *= 2;
         return f;
       };
     }},
    {"o gets the square of its factor", true, false,
     [](Rules& r) {
       r.factors = [right = r.factors](double m, double n, double both) {
         Factors f = right(m, n, both);
         f.o *= f.o;
         return f;
       };
     }},
    {"the new step is not rescaled", true, false,
     [](Rules& r) {
       r.factors = [right = r.factors](double m, double n, double both) {
         Factors f = right(m, n, both);
         f.new_o = f.new_l = n == minus_infinity ? 0 : 1;
         return f;
       };
     }},
    {"lse without m", true, false,
     [](Rules& r) {
       r.returned_lse = [](const std::vector<RowState>& steps, double lse) { return lse - steps.front().m; };
     }},
    {"lse one too large", true, false,
     [](Rules& r) { r.returned_lse = [](const std::vector<RowState>&, double lse) { return lse + 1; }; }},
    {"dO of half of the columns", false, true,
     [](Rules& r) {
       r.dout = [](const Slots&, const Problem& p, const Place& place, Index head, Index column) {
         return column < p.the_case.dim / 2 ? p.dout.view()(0, head, place.position, column) : 0.0;
       };
     }},
    {"dO of another head", false, true,
     [](Rules& r) {
       r.dout = [](const Slots&, const Problem& p, const Place& place, Index head, Index column) {
         return p.dout.view()(0, p.the_case.heads - 1 - head, place.position, column);
       };
     }},
    {"dO with its sign changed", false, true,
     [](Rules& r) {
       r.dout = [](const Slots&, const Problem& p, const Place& place, Index head, Index column) {
         return (column % 2 == 0 ? -1 : 1) * p.dout.view()(0, head, place.position, column);
       };
     }},
    {"dV goes one rank too far", false, true,
     [](Rules& r) {
       each_step(r, [](const Turn& turn, Step& step, int) {
         step.dv_to = Ring{step.dv_to, turn.ring.size}.owner(-1);
       });
     }},
    {"dK of the first step is lost", false, true,
     [](Rules& r) {
       each_step(r, [](const Turn&, Step& step, int number) {
         if (number == 0) step.dk_to = Step::no_rank;
       });
     }},
    {"dK, dV of the last step are lost", false, true,
     [](Rules& r) {
       each_step(r, [](const Turn& turn, Step& step, int number) {
         if (number + 1 == turn.ring.size) step.dk_to = step.dv_to = Step::no_rank;
       });
     }},
    {"dQ without its last step", false, true,
     [](Rules& r) {
       r.add_dq = [](Matrix<double>& sum, const Matrix<double>& part, int step) {
         if (step < 2) sum += part;
       };
     }},
    {"dK with half the scale", false, true, [](Rules& r) { r.dk_factor = [](const Case&) { return 0.5; }; }},
    {"dK, dV times the heads of a group", false, true,
     [](Rules& r) {
       r.dkdv_of = [](const Problem& p, Index) { return static_cast<double>(p.the_case.group()); };
     }},
};

inline Trial trial_of(const NewMistake& wrong, Mistake& made) {
  made.id = wrong.name;
  made.edit = wrong.edit;
  const Hypothesis with{{&made}}, right;
  return {wrong.name, wrong.in_forward ? with : right, wrong.in_backward ? with : right};
}

}  // namespace ring_attention::diagnose
