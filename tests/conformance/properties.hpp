// The properties of the conformance suite.
#pragma once

#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <set>

#include "conformance/cases.hpp"
#include "conformance/ways.hpp"

namespace ring_attention::test {

/// Head h of the result is head h / copies of x.
template <class T>
Tensor<T> with_copies_of_heads(const Tensor<T>& x, Index copies) {
  const Shape& from = x.shape();
  Tensor<T> all({from.batch, copies * from.heads, from.seq, from.dim});
  for (Index batch = 0; batch < from.batch; ++batch)
    for (Index head = 0; head < all.shape().heads; ++head)
      std::copy_n(x.view().head(batch, head / copies), from.seq * from.dim, all.view().head(batch, head));
  return all;
}

/// dK and dV where several ranks have one K,V head: those of a head for each rank, added in the order of the ranks.
template <class T>
void expect_sums_of_ranks(const Way<T>& way, const GradientProblem<T>& problem, const Team& team,
                          const Gradients<T>& got) {
  Case what = problem.what();
  const Index ranks = team.ulysses / what.kv_heads;
  what.kv_heads *= ranks;
  what.group /= ranks;
  const Problem<T>& p = problem.forward;
  const GradientProblem<T> of_ranks{{what,
                                     p.q.clone(),
                                     with_copies_of_heads(p.k, ranks),
                                     with_copies_of_heads(p.v, ranks),
                                     {},
                                     p.bias.clone()},
                                    problem.grad_out.clone(),
                                    {}};
  const Gradients<T> alone = way.run(of_ranks, way.of({.rings = team.rings})).gradients;
  for (Tensor<T> Gradients<T>::* gradient : {&Gradients<T>::k, &Gradients<T>::v}) {
    const Tensor<T>& one = alone.*gradient;
    Tensor<T> sum((got.*gradient).shape());
    for (Index batch = 0; batch < what.batch; ++batch)
      for (Index head = 0; head < what.kv_heads; ++head) {
        T* to = sum.view().head(batch, head / ranks);
        const T* term = one.view().head(batch, head);
        for (Index i = 0; i < one.shape().seq * one.shape().dim; ++i)
          to[i] = head % ranks == 0 ? term[i] : to[i] + term[i];
      }
    EXPECT_TRUE(bitwise_equal(got.*gradient, sum)) << "dK or dV has other bits than the sum over the ranks";
  }
}

/// One problem on one device and team: agrees with the reference in double; sends what the formula says; has the bits of the
/// ring of its size, and of another way where that is due.
template <class T>
void expect_conformance(const Way<T>& way, const GradientProblem<T>& problem, const Team& members) {
  const Case& what = problem.what();
  const Team team = way.of(members);
  SCOPED_TRACE(way.name + ", " + to_string(team) + ": " + to_string(what));
  const TeamRun<T> got = way.run(problem, team);
  EXPECT_TRUE(way.agrees(got, problem));
  if (way.tile == 0) {
    EXPECT_TRUE(sent_what_it_should(got, what, team, way.bytes));
  }
  if (way.same) {
    const TeamRun<T> want = way.same(problem, team);
    EXPECT_TRUE(same_bits<T>(got, want)) << "another way has other bits";
    EXPECT_TRUE(bitwise_equal(got.gradients.bias, want.gradients.bias))
        << "another way has other bits in dbias";
  }
  if (team.ulysses == 1 && !team.all_gathers_kv) return;
  const TeamRun<T> ring = way.run(problem, way.of({.rings = team.rings}));
  EXPECT_TRUE(same_bits(got.attended, ring.attended)) << "the ring has other bits";
  EXPECT_TRUE(bitwise_equal(got.gradients.q, ring.gradients.q)) << "the ring has other bits in dq";
  if (what.kv_heads % team.ulysses == 0)
    EXPECT_TRUE(same_bits<T>(got, ring)) << "the ring has other bits";
  else if (way.tile == 0)
    expect_sums_of_ranks(way, problem, team, got.gradients);
}

/// The next team from `turn` on that can share the problem on this device; none where the device refuses the problem.
template <class T>
std::optional<Team> next_team(const Way<T>& way, const Case& what, std::size_t& turn) {
  for (std::size_t tried = 0; tried < teams.size(); ++tried)
    if (const Team& team = teams[turn++ % teams.size()]; way.takes(what, team)) return team;
  return {};
}

/// Every case on every device that takes it; teams are in turn, so that every device meets every team. Or one of `every` of
/// these: `make check` sets RING_ATTENTION_EVERY, and then each device, team, mask and term is still met.
template <class T>
void expect_every_case(const std::vector<Way<T>>& ways, std::size_t every = 1) {
  const auto short_choice = static_cast<std::size_t>(from_environment("RING_ATTENTION_EVERY", 0));
  if (short_choice > 0) every = short_choice;
  std::size_t turn = 0, of_case = 0;
  std::set<std::string> without;
  const auto mask_of = [](const NamedCase& named) { return named.name.substr(0, named.name.find(", ")); };
  for (const Way<T>& way : ways) without.insert(way.name);
  if (short_choice > 0) {
    without.insert({"bias", "sinks", "softcap", "dropout"});
    for (const Team& team : teams) without.insert(to_string(team));
    for (const NamedCase& named : named_cases()) without.insert(mask_of(named));
  }
  for (const NamedCase& named : named_cases()) {
    SCOPED_TRACE(named.name);
    const auto problem = make_gradient_problem<T>(named.what);
    std::size_t number = of_case++;  // every way meets cases, also where `every` divides the number of ways
    for (const Way<T>& way : ways) {
      if (number++ % every != 0) continue;
      const std::optional<Team> team = next_team(way, named.what, turn);
      if (!team) continue;
      const Scoring& scoring = named.what.scoring;
      for (const std::string& met : {way.name, to_string(*team), mask_of(named)}) without.erase(met);
      if (named.what.bias_batch > 0) without.erase("bias");
      if (!scoring.sinks.empty()) without.erase("sinks");
      if (scoring.softcap > 0) without.erase("softcap");
      if (scoring.dropout.probability > 0) without.erase("dropout");
      if (way.problem_of)
        expect_conformance(way, way.problem_of(named.what), *team);
      else
        expect_conformance(way, problem, *team);
    }
    if (of_case % 7 == 0) ++turn;  // or as many ways as teams, chosen or not, would meet some teams only
  }
  EXPECT_EQ(without, std::set<std::string>()) << "these met no case";
}

/// A ring of one rank has the bits of the single device.
template <class T>
void expect_one_rank() {
  for (const NamedCase& named : named_cases()) {
    SCOPED_TRACE(named.name);
    const auto problem = make_gradient_problem<T>(named.what);
    const TeamRun<T> fast = run(problem, {}),
                     readable = run(problem, {}, ReadableDevice<T>({}, named.what.block));
    const Whole<T> device = single_device(problem);
    EXPECT_TRUE(same_bits<T>(fast, device));
    EXPECT_TRUE(bitwise_equal(fast.gradients.bias, device.gradients.bias)) << "dbias";
    EXPECT_TRUE(same_bits(readable.gradients, device_gradients(problem))) << "readable";
  }
}

template <class T>
void expect_random_problems(const std::vector<Way<T>>& ways, Index cases) {
  for_each_case(cases, [&](Dice& dice, Index index) {
    const Way<T>& way = ways[static_cast<std::size_t>(index) % ways.size()];
    Case what = random_problem(dice, index);
    auto turn = static_cast<std::size_t>(dice.between(0, std::ssize(teams) - 1));
    std::optional<Team> team = next_team(way, what, turn);
    for (int drawn = 1; !team && drawn < 100; ++drawn) {
      what = random_problem(dice, index);
      team = next_team(way, what, turn);
    }
    ASSERT_TRUE(team) << way.name << " refuses every problem";
    expect_conformance(way, way.problem_of ? way.problem_of(what) : make_gradient_problem<T>(what), *team);
  });
}

// ---- what it holds --------------------------------------------------------------------------------------------

/// The most bytes of tensors of a rank in the forward and in the backward of the fast engines, besides the arrays that a
/// pass begins with. \param wire  bytes of a number of K,V in messages
template <class T>
std::pair<Index, Index> most_bytes(const Case& what, const Team& team, int rank, Index wire = sizeof(T)) {
  const RankGrid grid = team.grid(rank);
  const Placements tokens = team.tokens(what);
  const Interval heads = shared_heads(what.kv_heads, team.ulysses).front();
  const Index q_heads = what.q().heads / team.ulysses, kv_heads = heads.end - heads.begin, ranks = team.rings;
  const Shape q{what.batch, q_heads, count(grid.shard(tokens.queries)), what.dim};
  const KvShape both = what.kv();
  const Shape out = q.with_dim(both.value_dim);
  const auto kv = [&](Index keys) { return both.with_seq(keys).elements() / what.kv_heads * kv_heads; };
  const Index largest = kv(tokens.keys.max_tokens()), all = kv(what.keys),
              own = kv(count(grid.shard(tokens.keys)));
  const bool travels = ranks > 1, narrow = wire < static_cast<Index>(sizeof(T));
  const Index element = sizeof(T), widened = narrow ? largest * element : 0;
  const Index pieces = team.all_gathers_kv ? all : (travels ? 2 : 1) * largest;  // here, and on its way
  // The sums here; what this step adds to them, and on their way; or what this rank adds to all, and the others to it.
  const Index sums = team.all_gathers_kv ? all + (ranks - 1) * own : (travels ? 3 : 2) * largest;
  const auto& kernels_of = kernels<T>(best_isa());
  const Index row = q.per_row().size();
  // out; m, which becomes lse, and l
  const Index forward = out.size() + 2 * row + forward_tile_elements<T>(q, out.dim);
  const Index backward =
      q.size() + row + sums + tile_elements<T>(kernels_of.backward.workspace, q.dim, out.dim);  // dQ, delta
  return {forward * element + pieces * wire + widened, backward * element + pieces * wire + widened};
}

template <class Input, class T = Input>
void expect_that_it_holds_no_more() {
  using Value = SumOf<Input>;
  for (const PlacementKind kind : placement_kinds)
    for (const Team& team : teams) {
      Case what{.batch = 2, .kv_heads = 2, .group = 6, .queries = 50, .keys = 43, .dim = 8, .kind = kind};
      if (kind != PlacementKind::contiguous) what.value_dim = kind == PlacementKind::striped ? 3 : 11;
      if (!can_share_heads(12, 2, team.ulysses)) continue;
      const auto problem =
          GradientProblem<Value>{make_problem<Value>(what), random_grad_out<Value>(what), {}};
      const TeamRun<Value> got = run(problem, team, *make_cpu_device<Input, T>({}));
      for (int rank = 0; rank < team.ranks(); ++rank) {
        const auto [forward, backward] = most_bytes<Value>(what, team, rank, sizeof(T));
        EXPECT_EQ(got[rank].forward_peak, forward)
            << to_string(team) << ", " << name(kind) << ", rank " << rank;
        EXPECT_EQ(got[rank].peak, backward) << to_string(team) << ", " << name(kind) << ", rank " << rank;
      }
    }
}

// ---- which pairs take part ------------------------------------------------------------------------------------

/// Row i of each head is 1 in column i and 0 elsewhere.
template <class T>
Tensor<T> unit_rows(const Shape& shape) {
  Tensor<T> x(shape);
  for (Index batch = 0; batch < shape.batch; ++batch)
    for (Index head = 0; head < shape.heads; ++head)
      for (Index i = 0; i < shape.seq; ++i) x.view()(batch, head, i, i) = 1;
  return x;
}

template <class T>
bool is_zero(std::span<const T> row) {
  return std::ranges::all_of(row, [](T x) { return x == 0; });
}

/// With such a V, out is 0 where a pair takes no part. With such a dO, dV is 0 where the pairs of a key with this query, of
/// the heads that share it, take no part. The gradients of a query without pairs, and of a key that no query sees, are 0.
template <class T>
void expect_the_pairs_of(const Way<T>& way, Case what, const Team& members) {
  SCOPED_TRACE(way.name + ", " + to_string(members) + ": " + to_string(what));
  what.dim = std::max(what.queries, what.keys);
  what.value_dim = 0;
  auto [q, k, v] = random_inputs<T>(what);
  const GradientProblem<T> problem{
      {what, std::move(q), std::move(k), unit_rows<T>(what.kv()), {}}, unit_rows<T>(what.q()), {}};
  const TeamRun<T> got = way.run(problem, way.of(members));
  const Dropout& dropout = what.scoring.dropout;
  Index wrong = 0;
  std::vector<bool> sees(static_cast<std::size_t>(what.queries)),
      is_seen(static_cast<std::size_t>(what.keys));
  for (Index batch = 0; batch < what.batch; ++batch)
    for (Index kv_head = 0; kv_head < what.kv_heads; ++kv_head)
      for (Index query = 0; query < what.queries; ++query)
        for (Index key = 0; key < what.keys; ++key) {
          bool any = false;
          const bool visible = what.scoring.mask.allowed(query, key);
          if (visible) sees[static_cast<std::size_t>(query)] = is_seen[static_cast<std::size_t>(key)] = true;
          for (Index head = kv_head * what.group; head < (kv_head + 1) * what.group; ++head) {
            const bool due =
                visible && (!dropout.drops() || dropout.keeps(dropout.row(batch, head, query), key));
            any = any || due;
            wrong += (got.attended.out.view()(batch, head, query, key) != 0) == due ? 0 : 1;
          }
          wrong += (got.gradients.v.view()(batch, kv_head, key, query) != 0) == any ? 0 : 1;
        }
  EXPECT_EQ(wrong, 0) << "pairs";
  for (Index query = 0; query < what.queries; ++query)
    if (!sees[static_cast<std::size_t>(query)]) {
      EXPECT_TRUE(is_zero<T>(got.gradients.q.view().row(1, 3, query))) << "dq of query " << query;
    }
  for (Index key = 0; key < what.keys; ++key)
    if (!is_seen[static_cast<std::size_t>(key)]) {
      EXPECT_TRUE(is_zero<T>(got.gradients.k.view().row(1, 1, key))) << "dk of key " << key;
    }
}

template <class T>
void expect_the_pairs(const std::vector<Way<T>>& ways) {
  std::size_t turn = 0, number = 0;
  for (const auto& [queries, keys] : {std::pair<Index, Index>{17, 17}, {9, 22}, {19, 13}})
    for (const NamedScoring& named : every_scoring(queries, keys, 4, 0.02))
      for (const Way<T>& way : ways) {
        Case what{
            .batch = 2, .group = 2, .queries = queries, .keys = keys, .scoring = named.scoring, .block = 3};
        what.kind = placement_kinds.begin()[turn % 3];
        what.every_hop = turn % 2 == 0;
        if (number++ % 3 > 0) what.scoring.dropout = {.probability = 0.4, .seed = 7, .step = 3, .layer = 2};
        if (const auto team = next_team(way, what, turn)) expect_the_pairs_of(way, what, *team);
      }
}

// ---- what is not finite ---------------------------------------------------------------------------------------

/// Two sequences with a bias of its own for each head.
inline Case with_each_bias(const Mask& mask) {
  return {.batch = 2,
          .group = 2,
          .queries = 17,
          .keys = 17,
          .dim = 5,
          .scoring = {0.6, mask},
          .bias_batch = 2,
          .bias_heads = 4};
}

/// A forward whose numbers have one that is not finite.
template <class T>
struct Spoiled {
  std::string name;
  std::function<void(Problem<T>&)> spoil;
  std::function<bool(Index batch, Index head, Index query)> shows;  ///< in these rows of out
};

/// NaN or infinity in an input is in all rows that it belongs to, and the other rows keep their bits.
template <class T>
void expect_visible_in(const Way<T>& way, const Case& what, const Team& members, const Spoiled<T>& spoiled) {
  SCOPED_TRACE(spoiled.name + ": " + way.name + ", " + to_string(members));
  auto [q, k, v] = random_inputs<T>(what);
  Problem<T> problem{what, std::move(q), std::move(k), std::move(v), {}, random_bias<T>(what)};
  const TeamRun<T> right = way.run(problem, way.of(members));
  spoiled.spoil(problem);
  const TeamRun<T> got = way.run(problem, way.of(members));
  for (Index batch = 0; batch < what.batch; ++batch)
    for (Index head = 0; head < what.q().heads; ++head)
      for (Index query = 0; query < what.queries; ++query) {
        const auto row = got.attended.out.view().row(batch, head, query);
        const auto before = right.attended.out.view().row(batch, head, query);
        if (spoiled.shows(batch, head, query))
          EXPECT_TRUE(std::ranges::all_of(row, [](T x) { return std::isnan(x); })) << "row " << query;
        else
          EXPECT_TRUE(std::ranges::equal(row, before)) << "row " << query << " is another one";
      }
}

template <class T>
void expect_visible(const std::vector<Way<T>>& ways) {
  const Case what = with_each_bias(Mask::causal());
  const T nan = std::numeric_limits<T>::quiet_NaN();
  const auto row_7 = [](Index batch, Index head, Index query) {
    return batch == 1 && head == 2 && query == 7;
  };
  const auto sees_3 = [](Index batch, Index head, Index query) {
    return batch == 1 && head >= 2 && query >= 3;
  };
  const std::vector<Spoiled<T>> all{
      {"NaN in q", [=](Problem<T>& p) { p.q.view()(1, 2, 7, 3) = nan; }, row_7},
      {"NaN in the bias", [=](Problem<T>& p) { p.bias.view()(1, 2, 7, 3) = nan; }, row_7},
      {"infinity in the bias", [=](Problem<T>& p) { p.bias.view()(1, 2, 7, 3) = -negative_infinity<T>; },
       row_7},
      {"NaN in a hidden bias", [=](Problem<T>& p) { p.bias.view()(1, 2, 7, 8) = nan; },
       [](Index, Index, Index) { return false; }},
      {"NaN in k", [=](Problem<T>& p) { p.k.view()(1, 1, 3, 0) = nan; }, sees_3},
      {"-NaN in k", [=](Problem<T>& p) { p.k.view()(1, 1, 3, 0) = -nan; }, sees_3},
  };
  std::size_t turn = 0;
  for (const Way<T>& way : ways)
    for (const Spoiled<T>& spoiled : all)
      for (int i = 0; i < 3; ++i)
        if (const auto team = next_team(way, what, turn)) expect_visible_in(way, what, *team, spoiled);
}

/// A row whose keys a bias hides sees nothing: out = 0, lse = -inf, dQ = dbias = 0.
template <class T>
void expect_hidden_rows(const std::vector<Way<T>>& ways) {
  const Case what = with_each_bias({});
  std::size_t turn = 0;
  auto problem = make_gradient_problem<T>(what);
  std::ranges::fill(problem.forward.bias.view().row(1, 2, 5), negative_infinity<T>);
  for (const Way<T>& way : ways)
    for (int i = 0; i < 3; ++i) {
      const std::optional<Team> team = next_team(way, what, turn);
      if (!team) continue;
      SCOPED_TRACE(way.name + ", " + to_string(*team));
      const TeamRun<T> got = way.run(problem, way.of(*team));
      EXPECT_EQ(got.attended.lse.view()(1, 2, 5), negative_infinity<T>);
      for (const auto* array : {&got.attended.out, &got.gradients.q, &got.gradients.bias}) {
        EXPECT_TRUE(is_zero<T>(array->view().row(1, 2, 5)));
        EXPECT_EQ(count_non_finite<T>(array->view()).count, 0);
      }
      EXPECT_EQ(count_non_finite<T>(got.gradients.k.view()).count, 0);
    }
}

}  // namespace ring_attention::test
