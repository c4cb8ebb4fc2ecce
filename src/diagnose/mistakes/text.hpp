/// \file
/// The text of mistakes.tsv, compiled in.
#pragma once

#include <string_view>

namespace ring_attention::diagnose {

extern const std::string_view mistakes_text;

}  // namespace ring_attention::diagnose
