#include "program/plan/config.hpp"

#include <fstream>
#include <nlohmann/json.hpp>

#include "ring_attention/core/error.hpp"

namespace ring_attention {

plan::ModelShape model_of_config(const std::string& file) {
  std::ifstream stream(file);
  if (!stream) throw InputError("--config " + file, "cannot be read", "check the path");
  auto config = nlohmann::json::parse(stream, nullptr, false);
  if (config.is_discarded() || !config.is_object())
    throw InputError("--config " + file + " is not a JSON object: give a model's config.json");
  if (config.contains("text_config")) config = config["text_config"];  // of a model that also sees images
  const auto size = [&](const char* name) {
    const auto found = config.find(name);
    if (found == config.end() || !found->is_number_integer())
      throw InputError("--config " + file + " has no integer " + name +
                       ": name the sizes by flags, without --config");
    return found->get<Index>();
  };
  const auto type = config.find("model_type");
  plan::ModelShape model{type != config.end() && type->is_string() ? type->get<std::string>() : file,
                         size("num_hidden_layers"),
                         size("hidden_size"),
                         size("num_attention_heads"),
                         config.contains("num_key_value_heads") ? size("num_key_value_heads") : 0,
                         size("intermediate_size"),
                         size("vocab_size")};
  if (model.kv_heads == 0) model.kv_heads = model.heads;
  if (config.contains("head_dim") && config["head_dim"].is_number_integer() && model.heads > 0 &&
      config["head_dim"] != model.hidden / model.heads)
    model.name += ", not counted: head_dim " + config["head_dim"].dump();
  for (const char* const other : {"sliding_window", "num_experts", "num_local_experts", "n_routed_experts",
                                  "kv_lora_rank", "v_head_dim", "attention_chunk_size"})
    if (config.contains(other) && !config[other].is_null())
      model.name += std::string(", not counted: ") + other + ' ' + config[other].dump();
  return model;
}

}  // namespace ring_attention
