// Every kind of mask and bias, for problems of any size.
#pragma once

#include <string>
#include <vector>

#include "ring_attention/attention/scoring.hpp"
#include "support/cases.hpp"

namespace ring_attention::test {

struct NamedScoring {
  std::string name;
  Scoring scoring;
};

/// Documents of 2, 0 and about half of `keys` tokens, and the rest as the last one, of which `missing` tokens
/// at the end are in no document.
std::shared_ptr<const Documents> some_documents(Index keys, Index missing = 0);

/// One of all kinds of sets that fit into `keys` keys, some of them in one mask, or up to four intervals of each query.
std::shared_ptr<const KeySets> random_sets(Dice& dice, Index queries, Index keys);

/// Aligned at the last query and the last key, as everywhere.
std::vector<NamedScoring> every_scoring(Index queries, Index keys, Index heads, double scale);

}  // namespace ring_attention::test
