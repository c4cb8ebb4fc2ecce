#include "plan/model_shape.hpp"

#include "plan/names.hpp"
#include "ring_attention/core/counted.hpp"
#include "ring_attention/core/error.hpp"
#include "ring_attention/core/shape.hpp"

namespace ring_attention::plan {

double ModelShape::layer_parameters() const {
  const auto h = static_cast<double>(hidden);
  return 2 * h * h + 2 * h * static_cast<double>(kv_heads * dim()) + 3 * h * static_cast<double>(ffn);
}

double ModelShape::parameters() const {
  return static_cast<double>(layers) * layer_parameters() + 2.0 * static_cast<double>(vocab * hidden);
}

const std::vector<ModelShape>& named_models() {
  static const std::vector<ModelShape> models{
      {"llama-3b", 26, 3200, 32, 32, 8640, 32000},     {"llama-7b", 32, 4096, 32, 32, 11008, 32000},
      {"llama-13b", 40, 5120, 40, 40, 13824, 32000},   {"llama-30b", 60, 6656, 52, 52, 17920, 32000},
      {"llama-65b", 80, 8192, 64, 64, 22016, 32000},   {"llama-3-8b", 32, 4096, 32, 8, 14336, 128256},
      {"llama-3-70b", 80, 8192, 64, 8, 28672, 128256}, {"llama-3-405b", 126, 16384, 128, 8, 53248, 128256},
  };
  return models;
}

ModelShape model_named(const std::string& name) { return named(named_models(), name, "model"); }

void validate(const ModelShape& model) {
  for (const Index size : {model.layers, model.hidden, model.heads, model.kv_heads, model.ffn, model.vocab})
    if (!within(size, 1, largest_count))
      throw InputError("a model has 1 to 2^31 - 1 of everything: layers, heads, ...");
  if (model.hidden % model.heads != 0)
    throw InputError("the hidden size " + std::to_string(model.hidden) + " must be a multiple of the " +
                     std::to_string(model.heads) + " heads");
  if (model.heads % model.kv_heads != 0)
    throw InputError("the " + counted(model.kv_heads, "KV head") + " must divide the " +
                     counted(model.heads, "head"));
}

}  // namespace ring_attention::plan
