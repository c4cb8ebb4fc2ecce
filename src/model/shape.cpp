#include "model/shape.hpp"

#include <algorithm>
#include <string>

#include "ring_attention/core/counted.hpp"
#include "ring_attention/core/error.hpp"
#include "ring_attention/core/shape.hpp"
#include "ring_attention/core/text.hpp"
#include "ring_attention/parallel/collectives/sum.hpp"
#include "ring_attention/parallel/ulysses/heads.hpp"

namespace ring_attention::model {
namespace {

bool can_share(const ModelShape& shape, int tensor, int ulysses) {
  return can_share_heads(shape.heads, shape.kv_heads, tensor) &&
         can_share_heads(shape.heads / tensor, std::max<Index>(1, shape.kv_heads / tensor), ulysses);
}

/// "1 x 1, 1 x 2, 2 x 1": all pairs that can share, of no more ranks than there are.
std::string pairs_that_can(const ModelShape& shape, int ranks) {
  std::string text;
  for (int tensor = 1; tensor <= ranks; ++tensor)
    for (int ulysses = 1; tensor * ulysses <= ranks; ++ulysses)
      if (ranks / (tensor * ulysses) * (tensor * ulysses) == ranks && can_share(shape, tensor, ulysses))
        text += format("%s%d x %d", text.empty() ? "" : ", ", tensor, ulysses);
  return text;
}

}  // namespace

void require_valid(const ModelShape& s) {
  const auto check = [](bool holds, const std::string& problem, const std::string& remedy) {
    if (!holds) throw InputError("model", problem, remedy);
  };
  const auto sizes = {s.layers, s.width, s.heads, s.kv_heads, s.dim, s.hidden, s.vocabulary, s.classes};
  check(std::ranges::min(sizes) >= 1, "a size is less than 1", "use positive sizes");
  check(std::ranges::max(sizes) <= largest_count, "a size is more than 2^31 - 1", "use smaller sizes");
  check(fits({s.layers, s.width, std::max({s.hidden, s.vocabulary}), 1}) &&
            fits({s.layers, s.width, s.heads, s.dim}),
        "more than 2^48 parameters", "use smaller sizes");
  check(s.heads % s.kv_heads == 0, counted(s.kv_heads, "KV head") + " for " + counted(s.heads, "query head"),
        "use a number of KV heads that divides the query heads");
  check(
      s.rotary >= 0 && s.rotary <= s.dim && s.rotary % 2 == 0,
      format("%lld rotary columns of %lld", static_cast<long long>(s.rotary), static_cast<long long>(s.dim)),
      "use an even number, at most the columns of a head");
  check(!s.token_shift || s.width % 2 == 0, "half of an odd width", "use an even width");
  check(s.first_class >= 0 && s.first_class + s.classes <= s.vocabulary, "classes outside the vocabulary",
        "use classes that are tokens");
}

void require_shareable(const ModelShape& shape, const MeshShape& mesh, Index batch) {
  if (!can_share(shape, mesh.tensor, mesh.ulysses))
    throw InputError("mesh " + to_string(mesh),
                     counted(shape.heads, "query head") + " and " + counted(shape.kv_heads, "KV head") +
                         " cannot be shared like this",
                     "use tensor x ulysses = " + pairs_that_can(shape, mesh.ranks()));
  if (batch < mesh.data)
    throw InputError("mesh " + to_string(mesh),
                     "a batch of " + counted(batch, "sequence") + " for " + counted(mesh.data, "rank"),
                     "use at most " + std::to_string(batch) + " on the data axis");
}

TensorPart::TensorPart(const ModelShape& shape, int own, int ranks)
    : index(own), kv_replicas{1, std::max(1, ranks / static_cast<int>(shape.kv_heads))} {
  heads = shared_heads(shape.heads, ranks)[static_cast<std::size_t>(own)];
  kv_heads = shared_heads(shape.kv_heads, ranks)[static_cast<std::size_t>(own)];
  hidden = piece_of(shape.hidden, own, ranks);
}

}  // namespace ring_attention::model
