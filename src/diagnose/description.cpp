#include "diagnose/description.hpp"

#include "diagnose/json.hpp"

namespace ring_attention::diagnose {

std::vector<std::pair<std::string, const Tensor<double>*>> inputs_of(const Problem& problem) {
  std::vector<std::pair<std::string, const Tensor<double>*>> inputs{
      {"q", &problem.q}, {"k", &problem.k}, {"v", &problem.v}, {"dout", &problem.dout}};
  if (problem.bias.size() > 0) inputs.emplace_back("bias", &problem.bias);
  return inputs;
}

std::string description_of(const Problem& problem) {
  const Case& c = problem.the_case;
  JsonObject object;
  object.add("name", c.name).add("tests", c.tests).add("heads", c.heads).add("kv_heads", c.kv_heads);
  object.add("tokens", c.tokens).add("dim", c.dim).add("scale", c.scale()).add("causal", c.causal);
  if (c.window > 0) object.add("window", c.window);
  if (!c.documents.empty()) object.add("cu_seqlens", c.documents);
  if (c.padding > 0) object.add("hidden_keys", c.padding);
  if (c.alibi) object.add("alibi_slopes", problem.slopes);
  if (c.sinks) object.add("sinks", problem.sinks);
  std::vector<std::vector<Index>> tokens;
  for (int rank = 0; rank < problem.job.ranks; ++rank)
    tokens.push_back(positions(problem.job.tokens_of(rank, c.tokens)));
  return object.add("tokens_of_rank", tokens).text();
}

}  // namespace ring_attention::diagnose
