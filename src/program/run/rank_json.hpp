/// \file
/// One rank of a report, as JSON: for `run` and `decode`.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "program/run/report.hpp"

namespace ring_attention {

[[nodiscard]] nlohmann::ordered_json rank_json(const RankReport& rank);

}  // namespace ring_attention
