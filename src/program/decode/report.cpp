#include "program/decode/report.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/table.hpp"
#include "program/run/rank_json.hpp"
#include "ring_attention/core/counted.hpp"
#include "ring_attention/core/text.hpp"

namespace ring_attention {
namespace {

Index largest(const DecodeReport& report, Index RankReport::* field) {
  Index most = 0;
  for (const RankReport& rank : report.ranks) most = std::max(most, rank.*field);
  return most;
}

}  // namespace

Index DecodeReport::token_bytes() const { return largest(*this, &RankReport::bytes_sent) / decoded(); }
Index DecodeReport::token_messages() const { return largest(*this, &RankReport::messages_sent) / decoded(); }

std::string to_text(const DecodeReport& report, const DecodeOptions& options) {
  const auto files = [&](const std::string& names) {
    return options.is_random() ? std::string("random") : names;
  };
  std::string text = "Decoding, " + report.dtype + ", on " +
                     counted(static_cast<Index>(report.ranks.size()), "rank") + "; shapes are [B, H, S, D]\n";
  text += "  q       " + to_string(report.q) + "  " + files(options.q) + "\n";
  text += "  k, v    " + to_string(report.kv) + "  " + files(options.k + ", " + options.v) + "\n";
  text += format("  scores  scale %.6g%s\n", report.scale, mask_words(report, options).c_str());
  text += "  kernel  " + describe(report.backend, largest(report, &RankReport::threads)) + "\n";
  text += "  prompt  " + counted(report.prompt, "token") + " on a ring, " + options.placement +
          " placement: " + human_seconds(report.forward_seconds) + "\n";
  text += "  decode  " + counted(report.decoded(), "token") +
          " one by one: " + human_seconds(report.decode_seconds) +
          format(", %.4g tokens/s\n", report.tokens_per_second());
  text += "  moved   " + human_bytes(report.token_bytes()) + " a token and rank in " +
          counted(report.token_messages(), "message") + "; a ring would send " +
          human_bytes(report.ring_bytes) + " of K,V for the last token\n";
  text += "  waited  " + human_seconds(report.exchange_seconds) + " in messages while decoding\n";
  text += "  cache   " + human_bytes(report.cache_bytes) + " of K,V a rank at the end\n";
  text += "  memory  a rank's tensors at most " + human_bytes(largest(report, &RankReport::tensor_bytes)) +
          ", its process at most " + human_bytes(largest(report, &RankReport::process_bytes)) + "\n";
  if (options.check)
    text += "\nErrors against one causal forward, dense and in double:\n" + check_table(report);
  return text;
}

std::string to_json(const DecodeReport& report, const DecodeOptions& options) {
  const auto extents = [](const Shape& shape) {
    return std::vector<Index>{shape.batch, shape.heads, shape.seq, shape.dim};
  };
  nlohmann::ordered_json json{{"ok", report.ok()},
                              {"q_shape", extents(report.q)},
                              {"kv_shape", extents(report.kv)},
                              {"value_dim", report.kv.value_dim},
                              {"dtype", report.dtype},
                              {"scale", report.scale},
                              {"softcap", options.softcap.value_or(0)},
                              {"window", options.window},
                              {"alibi", options.alibi},
                              {"prompt", report.prompt},
                              {"decoded", report.decoded()},
                              {"placement", options.placement},
                              {"transport", report.backend.transport},
                              {"engine", report.backend.engine},
                              {"isa", report.backend.isa},
                              {"threads", largest(report, &RankReport::threads)},
                              {"ranks", report.ranks.size()},
                              {"read_seconds", report.read_seconds},
                              {"prompt_seconds", report.forward_seconds},
                              {"decode_seconds", report.decode_seconds},
                              {"exchange_seconds", report.exchange_seconds},
                              {"check_seconds", report.check_seconds},
                              {"tokens_per_second", report.tokens_per_second()},
                              {"bytes_per_token", report.token_bytes()},
                              {"messages_per_token", report.token_messages()},
                              {"ring_bytes_per_token", report.ring_bytes},
                              {"cache_bytes", report.cache_bytes},
                              {"tensor_bytes", largest(report, &RankReport::tensor_bytes)},
                              {"process_bytes", largest(report, &RankReport::process_bytes)},
                              {"warnings", report.warnings}};
  if (!options.is_random()) json["files"] = {{"q", options.q}, {"k", options.k}, {"v", options.v}};
  if (!options.sink.empty()) json["files"]["sink"] = options.sink;
  if (options.is_random()) json["seed"] = options.seed;
  for (const RankReport& rank : report.ranks) json["per_rank"].push_back(rank_json(rank));
  // File names may hold bytes that are not UTF-8.
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace ring_attention
