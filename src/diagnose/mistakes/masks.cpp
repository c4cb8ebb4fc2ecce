// Which pairs of a query and a key take part.
#include "diagnose/mistakes/edits.hpp"

namespace ring_attention::diagnose {
namespace {

/// Lets the mask take query and key to be elsewhere.
void moves(Rules& rules, void (*query)(const Slots&, Place&), void (*key)(const Slots&, Place&)) {
  rules.mask_positions.push_back([=](const Slots& slots, Pair& pair) {
    query(slots, pair.query);
    key(slots, pair.key);
  });
}
void moves(Rules& rules, void (*both)(const Slots&, Place&)) { moves(rules, both, both); }

void stays(const Slots&, Place&) {}
void to_slot(const Slots&, Place& place) { place.position = place.slot; }
void to_rank_order(const Slots& slots, Place& place) {
  place.position = place.rank * slots.count() + place.slot;
}

/// Replaces the causal rule in causal cases.
template <class Rule>
void causal(Rules& rules, Rule rule) {
  rules.causal = [rule](const Case& c, const Pair& pair) { return !c.causal || rule(pair); };
}

/// The same for tiles of other ranks alone.
template <class Rule>
void remote_causal(Rules& rules, Rule rule) {
  causal(rules, [rule](const Pair& pair) {
    return pair.on_one_rank() ? pair.key.position <= pair.query.position : rule(pair);
  });
}

/// The distance below which a window sees a key.
template <class Distance>
void window(Rules& rules, Distance distance) {
  rules.window = [distance](const Case& c, const Pair& pair) {
    return c.window == 0 || distance(pair) < c.window;
  };
}

Index distance(const Pair& pair) { return pair.query.position - pair.key.position; }

/// The number of a position's document, where each begins `late` tokens late.
Index document(const Case& c, Index position, Index late = 0) {
  Index number = 0;
  for (const Index begin : c.documents)
    if (begin > 0 && position >= begin + late) ++number;
  return number;
}

template <class Rule>
void documents(Rules& rules, Rule rule) {
  rules.documents = [rule](const Case& c, const Pair& pair) { return c.documents.empty() || rule(c, pair); };
}

/// Which keys count as padding; slots without a token always do.
template <class Rule>
void padding(Rules& rules, Rule rule) {
  rules.padding = [rule](const Case& c, const Pair& pair) {
    return pair.content.position < c.tokens && rule(c, pair);
  };
}

/// In remote tiles of a zigzag placement `rule` decides by halves; `before`: the keys' rank is before the queries'.
void zigzag_halves(Rules& rules, bool (*rule)(bool before, bool late_query, bool late_key)) {
  rules.mask_positions.push_back([](const Slots& slots, Pair& pair) {
    if (slots.job().placement != PlacementKind::zigzag) pair.key.rank = pair.query.rank;  // no remote tile
    pair.query.slot = 2 * pair.query.slot / slots.count();
    pair.key.slot = 2 * pair.key.slot / slots.count();
  });
  remote_causal(rules, [rule](const Pair& pair) {
    return rule(pair.key.rank < pair.query.rank, pair.query.slot == 1, pair.key.slot == 1);
  });
}

/// Zeros a rank's share of a length that is rounded down.
void cut_length(const Problem& problem, Arrays& arrays, const auto& which) {
  const Index tokens = problem.the_case.tokens, ring = problem.job.ring();
  for (const Array array : which)
    for (Index head = 0; head < arrays[array].shape().heads; ++head)
      for (Index token = tokens / ring * ring; token < tokens; ++token)
        for (double& x : arrays[array].view().row(0, head, token))
          x = array == Array::lse ? minus_infinity : 0;
}

void length_rounded_down(Rules& rules) {
  rules.mask_positions.push_back([](const Slots& slots, Pair& pair) {
    const Index kept = slots.tokens() / slots.ranks() * slots.ranks();
    if (pair.content.position >= kept) pair.content.position = slots.tokens();
  });
  rules.after_forward.push_back(
      [](const Problem& problem, Arrays& a) { cut_length(problem, a, of_forward); });
  rules.after_backward.push_back(
      [](const Problem& problem, const Turn&, Arrays& a) { cut_length(problem, a, of_backward); });
}

}  // namespace

std::vector<Edit> mask_edits() {
  return {
      {"mask-local", [](Rules& rules) { moves(rules, to_slot); }},
      {"queries-local", [](Rules& rules) { moves(rules, to_slot, stays); }},
      {"mask-as-contiguous", [](Rules& rules) { moves(rules, to_rank_order); }},
      {"keys-in-rank-order", [](Rules& rules) { moves(rules, stays, to_rank_order); }},
      {"mask-as-zigzag",
       [](Rules& rules) {
         moves(rules, [](const Slots& slots, Place& place) {
           place.position = slots.position(PlacementKind::zigzag, place);
         });
       }},
      {"mask-as-striped",
       [](Rules& rules) {
         moves(rules, [](const Slots& slots, Place& place) {
           place.position = slots.position(PlacementKind::striped, place);
         });
       }},
      {"world-placement",
       [](Rules& rules) {
         moves(rules, [](const Slots& slots, Place& place) {
           place.position = slots.position_if_placed_over_world(place);
         });
       }},
      {"swapped-axes",
       [](Rules& rules) {
         moves(rules, [](const Slots& slots, Place& place) {
           place.position = slots.position_with_swapped_axes(place);
         });
       }},
      {"no-mask",
       [](Rules& rules) {
         rules.causal = rules.window = rules.documents = [](const Case&, const Pair&) { return true; };
       }},
      {"causal-strict",
       [](Rules& rules) { causal(rules, [](const Pair& p) { return p.key.position < p.query.position; }); }},
      {"causal-reversed",
       [](Rules& rules) { causal(rules, [](const Pair& p) { return p.key.position >= p.query.position; }); }},
      {"causal-plus-one",
       [](Rules& rules) {
         causal(rules, [](const Pair& p) { return p.key.position <= p.query.position + 1; });
       }},
      {"partial-tiles-skipped", [](Rules& rules) { rules.skips_partial_tiles = true; }},
      {"remote-unmasked", [](Rules& rules) { remote_causal(rules, [](const Pair&) { return true; }); }},
      {"zigzag-halves",  // right: of a rank before, the first half of the keys; else the second of the queries
       [](Rules& rules) {
         zigzag_halves(rules, [](bool before, bool late_query, bool late_key) {
           return before ? late_key : !late_query;
         });
       }},
      {"zigzag-reversed",
       [](Rules& rules) {
         zigzag_halves(rules, [](bool before, bool late_query, bool late_key) {
           return before ? late_query : !late_key;
         });
       }},
      {"striped-strict",
       [](Rules& rules) {
         rules.mask_positions.push_back([](const Slots& slots, Pair& pair) {
           if (slots.job().placement != PlacementKind::striped) pair.key.rank = pair.query.rank;
         });
         remote_causal(rules, [](const Pair& p) { return p.key.slot < p.query.slot; });
       }},
      {"window-ignored", [](Rules& rules) { rules.window = [](const Case&, const Pair&) { return true; }; }},
      {"window-plus-one", [](Rules& rules) { window(rules, [](const Pair& p) { return distance(p) - 1; }); }},
      {"window-minus-one",
       [](Rules& rules) { window(rules, [](const Pair& p) { return distance(p) + 1; }); }},
      {"window-local",
       [](Rules& rules) { window(rules, [](const Pair& p) { return p.query.slot - p.key.slot; }); }},
      {"window-own-only",
       [](Rules& rules) { window(rules, [](const Pair& p) { return p.on_one_rank() ? distance(p) : 0; }); }},
      {"documents-ignored",
       [](Rules& rules) { rules.documents = [](const Case&, const Pair&) { return true; }; }},
      {"documents-plus-one",
       [](Rules& rules) {
         documents(rules, [](const Case& c, const Pair& p) {
           return document(c, p.query.position, 1) == document(c, p.key.position, 1);
         });
       }},
      {"documents-local",  // the key's, of the token in the same slot of the query's rank
       [](Rules& rules) {
         documents(rules, [](const Case& c, const Pair& p) {
           return document(c, p.query.position) == document(c, p.in_place_of_key.position);
         });
       }},
      {"hidden-keys-seen",
       [](Rules& rules) { padding(rules, [](const Case&, const Pair&) { return true; }); }},
      {"hidden-keys-local",
       [](Rules& rules) {
         padding(rules, [](const Case& c, const Pair& p) { return p.content.slot >= c.padding; });
       }},
      {"padding-counted",
       [](Rules& rules) {
         rules.padding = [](const Case& c, const Pair& pair) { return pair.content.position >= c.padding; };
       }},
      {"length-rounded-down", length_rounded_down},
  };
}

}  // namespace ring_attention::diagnose
