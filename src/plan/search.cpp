#include "plan/search.hpp"

#include <algorithm>
#include <cmath>

#include "ring_attention/core/counted.hpp"
#include "ring_attention/core/error.hpp"
#include "ring_attention/core/shape.hpp"
#include "ring_attention/core/text.hpp"
#include "ring_attention/parallel/ulysses/heads.hpp"

namespace ring_attention::plan {
namespace {

bool divides(Index divisor, Index number) { return number % divisor == 0; }

std::vector<int> divisors(int number) {
  std::vector<int> all;
  for (int i = 1; i <= number / i; ++i) {
    if (!divides(i, number)) continue;
    all.push_back(i);
    if (i < number / i) all.push_back(number / i);
  }
  std::ranges::sort(all);
  return all;
}

/// Every function below divides by these numbers. \throws InputError unless they are as core/index.hpp says
void require_valid(const Workload& work, int ranks, const MeshWish& wish) {
  validate(work.model);
  const auto check = [](bool holds, const char* what) {
    if (!holds) throw InputError(std::string("plan: ") + what);
  };
  constexpr auto longest = static_cast<double>(largest_position), most = static_cast<double>(largest_count);
  check(work.context >= 1 && work.context <= longest, "the context has 1 to 2^53 tokens");
  check(work.batch >= 1 && work.batch <= most, "a batch has 1 to 2^31 - 1 sequences");
  check(work.micro_batch >= 1 && work.micro_batch <= most, "a micro-batch has 1 to 2^31 - 1 sequences");
  check(work.element > 0 && work.element <= 8, "a number has up to 8 bytes");
  check(work.chunks >= 1, "a stage has at least one chunk of layers");
  for (const int size : {ranks, wish.pipeline, wish.tensor.value_or(1), wish.ulysses.value_or(1),
                         wish.ring.value_or(1), wish.data.value_or(1)})
    check(size >= 1, "there is at least one rank, and one along each axis of a mesh");
}

bool wanted(const std::optional<int>& wish, int size) { return !wish || *wish == size; }

bool can_be_tensor(const ModelShape& model, int tensor) {
  return divides(tensor, model.ffn) && can_share_heads(model.heads, model.kv_heads, tensor);
}

bool can_be_ulysses(const ModelShape& model, int tensor, int ulysses) {
  return can_share_heads(model.heads / tensor, std::max<Index>(1, model.kv_heads / tensor), ulysses);
}

/// The most stages that the layers, and a table of tokens at both ends, can be cut into.
Index most_stages(const Workload& work) { return (work.model.layers + 2) / work.chunks; }

bool can_be_pipeline(const Workload& work, int stages) {
  return stages == 1 || (work.phase == Phase::training && stages <= most_stages(work));
}

bool possible(const Workload& work, const Mesh& mesh, const MeshWish& wish) {
  const ModelShape& model = work.model;
  if (!wanted(wish.tensor, mesh.tensor) || !wanted(wish.ulysses, mesh.ulysses) ||
      !wanted(wish.ring, mesh.ring) || !wanted(wish.data, mesh.data))
    return false;
  if (!can_be_tensor(model, mesh.tensor) || !can_be_ulysses(model, mesh.tensor, mesh.ulysses)) return false;
  if (work.phase == Phase::decode && mesh.ulysses > 1) return false;
  const auto whole = [](double number) { return number >= 1 && number == std::floor(number); };
  return whole(work.sequences(mesh)) && whole(work.micro_batches(mesh)) && work.context >= mesh.context();
}

std::vector<Mesh> meshes(const Workload& work, int ranks, const MeshWish& wish) {
  std::vector<Mesh> all;
  if (!can_be_pipeline(work, wish.pipeline) || !divides(wish.pipeline, ranks)) return all;
  const int stage = ranks / wish.pipeline;
  for (const int tensor : divisors(stage))
    for (const int ulysses : divisors(stage / tensor))
      for (const int ring : divisors(stage / tensor / ulysses)) {
        const Mesh mesh{tensor, ulysses, ring, stage / tensor / ulysses / ring, wish.pipeline};
        if (possible(work, mesh, wish)) all.push_back(mesh);
      }
  return all;
}

/// Why there is no mesh.
[[noreturn]] void refuse(const Workload& work, int ranks, const MeshWish& wish) {
  const ModelShape& model = work.model;
  const auto list = [&](auto can) {
    std::string text;
    for (int n = 1; n <= std::min<Index>(model.heads, 1024); ++n)
      if (can(n)) text += (text.empty() ? "" : ", ") + std::to_string(n);
    return text;
  };
  if (wish.pipeline > 1 && work.phase != Phase::training)
    throw InputError("a pipeline", "only training has micro-batches to pass through it",
                     "leave it out for prefill and decode");
  if (!can_be_pipeline(work, wish.pipeline))
    throw InputError(
        counted(wish.pipeline, "stage"), "each chunk of a stage has a layer or a table of tokens",
        "use at most " + counted(most_stages(work), "stage") + " of " + counted(work.chunks, "chunk"));
  const int tensor = wish.tensor.value_or(1);
  if (!can_be_tensor(model, tensor))
    throw InputError(counted(tensor, "tensor rank"),
                     "must divide the heads and the feed-forward part of " + model.name,
                     "use " + list([&](int n) { return can_be_tensor(model, n); }));
  const int ulysses = wish.ulysses.value_or(1);
  if (work.phase == Phase::decode && ulysses > 1)
    throw InputError("Ulysses", "one token has no sequence to exchange for heads", "leave it out for decode");
  if (!can_be_ulysses(model, tensor, ulysses))
    throw InputError(counted(ulysses, "rank") + " of Ulysses",
                     "cannot share " + counted(model.heads / tensor, "head") + " with " +
                         counted(std::max<Index>(1, model.kv_heads / tensor), "KV head"),
                     "use " + list([&](int n) { return can_be_ulysses(model, tensor, n); }));
  if (wish.data && !divides(*wish.data, static_cast<Index>(work.batch)))
    throw InputError(counted(*wish.data, "replica"), format("must divide the batch, %.0f", work.batch),
                     "give another batch");
  double given = 1;  // the product of five int: an integer might overflow
  for (const int size : {tensor, ulysses, wish.ring.value_or(1), wish.data.value_or(1), wish.pipeline})
    given *= size;
  if (std::fmod(ranks, given) != 0)
    throw InputError(counted(ranks, "rank"), format("the sizes that are given multiply to %.0f", given),
                     "their product must divide the number of ranks");
  if (wish.pipeline > 1)
    if (const double sequences = work.batch / wish.data.value_or(1);
        std::fmod(sequences, work.micro_batch) != 0)
      throw InputError(format("a micro-batch of %.0f", work.micro_batch),
                       format("must divide the sequences of a replica, %.0f", sequences),
                       "give another batch");
  throw InputError(counted(ranks, "rank"),
                   format("no mesh of them can share %.0f x %.0f tokens and %lld heads", work.batch,
                          work.context, static_cast<long long>(model.heads)),
                   "give fewer ranks, a longer context or a larger batch");
}

/// Two meshes differ by a factor of two from one axis to another.
bool neighbours(const Mesh& a, const Mesh& b) {
  int halved = 0, doubled = 0, other = 0;
  const auto compare = [&](int x, int y) {
    if (2 * x == y)
      ++doubled;
    else if (x == 2 * y)
      ++halved;
    else if (x != y)
      ++other;
  };
  compare(a.tensor, b.tensor);
  compare(a.ulysses, b.ulysses);
  compare(a.ring, b.ring);
  compare(a.data, b.data);
  return halved == 1 && doubled == 1 && other == 0;
}

}  // namespace

std::vector<Candidate> candidates(const Workload& work, const Machine& machine, int ranks,
                                  const MeshWish& wish) {
  require_valid(work, ranks, wish);
  validate(machine);
  std::vector<Candidate> all;
  for (const Mesh& mesh : meshes(work, ranks, wish)) {
    all.push_back({mesh, memory(work, mesh), step_time(work, mesh, machine), fits(work, mesh, machine)});
    if (!std::isfinite(sum(all.back().memory)) || !std::isfinite(all.back().seconds()))
      throw InputError(
          machine.name +
          ": its memory or time would be infinite: give rates and sizes that a machine can have");
  }
  if (all.empty()) refuse(work, ranks, wish);
  std::stable_sort(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) {
    if (a.fits != b.fits) return a.fits;
    return a.fits ? a.seconds() < b.seconds() : sum(a.memory) < sum(b.memory);
  });
  return all;
}

std::vector<Candidate> with_neighbours(const std::vector<Candidate>& all) {
  std::vector<Candidate> chosen{all.front()};
  for (const Candidate& other : all)
    if (chosen.size() < 3 && other.fits == all.front().fits && neighbours(all.front().mesh, other.mesh))
      chosen.push_back(other);
  return chosen;
}

Longest longest_context(const Workload& work, const Machine& machine, int ranks, const MeshWish& wish) {
  Workload shortest = work;
  shortest.context = ranks;  // no mesh is excluded for want of tokens
  Longest longest;
  for (const Mesh& mesh : meshes(shortest, ranks, wish)) {
    const double tokens = longest_context(work, mesh, machine);
    if (tokens > longest.tokens) longest = {tokens, mesh};
  }
  return longest;
}

std::optional<int> enough_ranks(const Workload& work, const Machine& machine, int ranks,
                                const MeshWish& wish) {
  for (Index n = ranks; n <= Index{1} << 20; n *= 2)
    for (const Mesh& mesh : meshes(work, static_cast<int>(n), wish))
      if (fits(work, mesh, machine)) return static_cast<int>(n);
  return std::nullopt;
}

}  // namespace ring_attention::plan
