/// \file
/// `--out DIR` and the like: the program makes it if it is missing, and refuses it before the work starts if a file cannot
/// go there.
#pragma once

#include <string>

namespace ring_attention {

/// \throws InputError when there is no such directory and none can be made
void make_output_directory(const std::string& directory, const std::string& flag = "--out");

/// \throws InputError when a directory has the name of a file to come, or its temporary name
void require_no_directory(const std::string& file);

}  // namespace ring_attention
