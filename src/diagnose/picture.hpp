/// \file
/// Where results are wrong that no known mistake explains: in characters.
#pragma once

#include <string>

#include "diagnose/search.hpp"

namespace ring_attention::diagnose {

/// For each array a character a token, and what the array is made of, by ranks. \param precision  of the code
[[nodiscard]] std::string picture_of(const Evidence& one, Precision precision);

}  // namespace ring_attention::diagnose
