#include "support/masks.hpp"

#include <algorithm>

namespace ring_attention::test {

std::shared_ptr<const Documents> some_documents(Index keys, Index missing) {
  const Index first = std::min<Index>(2, keys);
  const Index middle = std::max(first, keys / 2 + 1);
  return std::make_shared<const Documents>(std::vector<Index>{
      0, first, first, std::min(middle, keys), std::max(std::min(middle, keys), keys - missing)});
}

std::vector<NamedScoring> every_scoring(Index queries, Index keys, Index heads, double scale) {
  const Index offset = keys - queries;
  const auto documents = some_documents(keys);
  const std::vector<double> slopes = alibi_slopes(heads);
  const auto with = [&](Mask mask, std::vector<double> bias = {}) {
    mask.offset = offset;
    return Scoring{scale, std::move(mask), std::move(bias)};
  };
  return {
      {"no mask", with({})},
      {"causal", with({.right = 0})},
      {"window 2,0", with({.left = 2, .right = 0})},
      {"window 1,2", with({.left = 1, .right = 2})},
      {"window all,1", with({.right = 1})},
      {"documents", with({.documents = documents})},
      {"documents, causal", with({.right = 0, .documents = documents})},
      {"documents that end early", with({.right = 0, .documents = some_documents(keys, 2)})},
      {"ALiBi", with({}, slopes)},
      {"ALiBi, causal", with({.right = 0}, slopes)},
      {"documents, window 3,1, ALiBi", with({.left = 3, .right = 1, .documents = documents}, slopes)},
  };
}

}  // namespace ring_attention::test
