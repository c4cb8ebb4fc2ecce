/// \file
/// `--out DIR` and the like: the program makes it if it is missing, and refuses it before the work starts if a file cannot
/// go there.
#pragma once

#include <string>
#include <vector>

namespace ring_attention {

/// \throws InputError when there is no such directory and none can be made
void make_output_directory(const std::string& directory, const std::string& flag = "--out");

/// \throws InputError when a directory has the name of a file to come, or its temporary name
void require_no_directory(const std::string& file);

/// Removes the files with the temporary names of `files`, which a killed job leaves in the directory, and says so in a
/// line on stderr. For one rank.
void remove_leftovers(const std::string& directory, const std::vector<std::string>& files);

}  // namespace ring_attention
