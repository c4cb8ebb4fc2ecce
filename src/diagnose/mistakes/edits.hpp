/// \file
/// What each mistake does: an edit of the rules of a ring. mistakes.tsv says the rest of it.
#pragma once

#include <string>
#include <vector>

#include "diagnose/rules.hpp"

namespace ring_attention::diagnose {

struct Edit {
  std::string id;
  void (*make)(Rules&);
  bool directed = false;  ///< does it depend on the way in which parcels travel?
};
inline constexpr bool directed = true;

[[nodiscard]] std::vector<Edit> schedule_edits();
[[nodiscard]] std::vector<Edit> mask_edits();
[[nodiscard]] std::vector<Edit> score_edits();  ///< heads, scale, bias, sinks
[[nodiscard]] std::vector<Edit> merge_edits();
[[nodiscard]] std::vector<Edit> softmax_edits();  ///< and what the forward returns
[[nodiscard]] std::vector<Edit> backward_edits();

}  // namespace ring_attention::diagnose
