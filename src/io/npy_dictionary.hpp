/// \file
/// The dictionary in the header of a `.npy` file: a part of npy.cpp.
#pragma once

#include <string>
#include <string_view>

#include "io/npy.hpp"

namespace ring_attention {

/// The remedy for a file that was damaged or made by something else.
inline constexpr const char* save_again = "save the array again with np.save";

/// Reads `{'descr': '<f8', 'fortran_order': False, 'shape': (2, 3), }`, in any order of keys, with any
/// white space. The payload offset is left at 0, and the extents are not multiplied.
/// \throws InputError
[[nodiscard]] NpyHeader parse_npy_dictionary(std::string_view text, const std::string& file);

}  // namespace ring_attention
