/// \file
/// The sizes of a model from the config.json of Hugging Face.
#pragma once

#include <string>

#include "plan/model_shape.hpp"

namespace ring_attention {

/// Its name lists what the file has and a ModelShape does not.
/// \throws InputError when the file cannot be read, or a size is missing
[[nodiscard]] plan::ModelShape model_of_config(const std::string& file);

}  // namespace ring_attention
