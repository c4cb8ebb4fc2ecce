// Every kind of mask and bias, for problems of any size.
#pragma once

#include <string>
#include <vector>

#include "ring_attention/attention/scoring.hpp"

namespace ring_attention::test {

struct NamedScoring {
  std::string name;
  Scoring scoring;
};

/// Documents of 2, 0 and about half of `keys` tokens, and the rest as the last one, of which `missing` tokens
/// at the end are in no document.
std::shared_ptr<const Documents> some_documents(Index keys, Index missing = 0);

/// Aligned at the last query and the last key, as everywhere.
std::vector<NamedScoring> every_scoring(Index queries, Index keys, Index heads, double scale);

}  // namespace ring_attention::test
