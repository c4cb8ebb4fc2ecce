#include "program/run/report.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/table.hpp"
#include "program/run/check.hpp"
#include "program/run/rank_json.hpp"
#include "ring_attention/core/counted.hpp"
#include "ring_attention/core/text.hpp"

namespace ring_attention {
namespace {

using Json = nlohmann::ordered_json;

/// The largest, or the sum, of one field over the ranks.
template <class Field>
Field largest(const RunReport& report, Field RankReport::* field) {
  Field most{};
  for (const RankReport& rank : report.ranks) most = std::max(most, rank.*field);
  return most;
}
Index total(const RunReport& report, Index RankReport::* field) {
  Index sum = 0;
  for (const RankReport& rank : report.ranks) sum += rank.*field;
  return sum;
}

/// The most hops of one rank of a ring of N: N - 1 forward; N - 1 for K,V and N for dK,dV backward. K,V that no rank needs
/// do not travel.
std::size_t hops(const RunReport& report, const RunOptions& options) {
  if (options.all_gathers()) return 0;
  const std::size_t ranks = report.ranks.size() / static_cast<std::size_t>(report.ulysses);
  return ranks - 1 + (options.wants_gradients() && ranks > 1 ? 2 * ranks - 1 : 0);
}

bool was_checked(const RunReport& report, std::size_t result) {
  return std::any_of(report.ranks.begin(), report.ranks.end(),
                     [&](const RankReport& rank) { return rank.errors[result].rows > 0; });
}

}  // namespace

std::string result_name(std::size_t result) {
  constexpr std::array arrays{"out", "lse", "dq", "dk", "dv", "dbias"};
  return result < arrays.size() ? arrays[result] : std::string("d") + number_names[result - arrays.size()];
}

std::string check_table(const RunReport& report) {
  Table table({"array", "rank", "rows", "max", "mean", "relative", "verdict"});
  for (std::size_t i = 0; i < result_count; ++i) {
    if (!was_checked(report, i)) continue;
    for (std::size_t r = 0; r < report.ranks.size(); ++r) {
      const ErrorReport& error = report.ranks[r].errors[i];
      if (error.rows == 0) continue;  // a rank without tokens
      table.row({result_name(i), std::to_string(r), std::to_string(error.rows), human_error(error.max),
                 human_error(error.mean), human_error(error.relative),
                 error.ok        ? "ok"
                 : error.decides ? "FAIL"
                                 : "unknown"});
    }
  }
  return table.text();
}

std::string check_error(const RunReport& report) {
  if (report.is_wrong()) return "the check failed";
  std::string names;
  for (std::size_t i = 0; i < result_count; ++i)
    if (std::ranges::any_of(report.ranks, [&](const RankReport& rank) { return !rank.errors[i].decides; }))
      names += (names.empty() ? "" : ", ") + result_name(i);
  return format("the check can say nothing about %s: roundings may reach more than %.0f %% of the norm",
                names.c_str(), 100 * widest_bound);
}

/// How the ranks divide the work, as a line with its heading.
std::string partition_words(const RunReport& report, const RunOptions& options) {
  const std::string placement = options.placement + " placement",
                    ring = placement + ", " + report.backend.transport + " transport, K,V travel in " +
                           report.backend.wire,
                    heads = "heads over " + counted(report.ulysses, "rank") + ", all-to-all in " +
                            (report.backend.device == "cpu" ? report.dtype : report.backend.wire);
  if (options.all_gathers())
    return "  gather  K,V of all ranks, in " + report.backend.wire + ", " + placement + "\n";
  if (options.parallel == "ring") return "  ring    " + ring + "\n";
  if (options.parallel == "ulysses") return "  ulysses " + heads + "\n";
  return "  hybrid  " + heads + "\n  rings   of " +
         std::to_string(report.ranks.size() / static_cast<std::size_t>(report.ulysses)) + ": " + ring + "\n";
}

/// Why --parallel auto chose it, as a line with its heading, or nothing.
std::string why_words(const RunOptions& options) {
  return options.why.empty() ? "" : "  auto    " + options.why + "\n";
}

/// The balance that is expected, as a line with its heading, or nothing.
std::string balance_words(const RunReport& report) {
  return report.balance ? "  balance " + describe(*report.balance) + "\n" : "";
}

/// What travelled, as a line with its heading.
std::string moved_words(const RunReport& report, const RunOptions& options) {
  std::string words = "  moved   " + human_bytes(total(report, &RankReport::bytes_sent)) + " in " +
                      counted(total(report, &RankReport::messages_sent), "message");
  if (options.parallel == "hybrid")
    words +=
        ": all-to-all " + human_bytes(total(report, &RankReport::all_to_all_bytes)) + ", rings " +
        human_bytes(total(report, &RankReport::bytes_sent) - total(report, &RankReport::all_to_all_bytes));
  if (options.parallel == "ring" || options.parallel == "hybrid")
    words += ", at most " + counted(static_cast<Index>(hops(report, options)), "hop") + " per rank";
  return words + "\n";
}

std::string mask_words(const RunReport& report, const RunOptions& options) {
  std::string words;
  const auto side = [](Index keys) { return keys < 0 ? "all" : std::to_string(keys); };
  if (options.causal) words += ", causal";
  if (!options.window.empty())
    words += ", window " + side(options.window[0]) + " before and " +
             side(options.causal ? 0 : options.window[1]) + " after";
  if (!options.documents.empty()) words += ", documents of " + options.documents;
  words += words_of(options.mask);
  if (options.alibi) words += ", ALiBi";
  if (options.causal || !options.window.empty() || !options.documents.empty() || options.mask.chunk ||
      options.alibi)
    words += ", query 0 at key position " + std::to_string(report.q_offset);
  if (options.softcap) words += format(", softcap %g", *options.softcap);
  if (!options.sink.empty()) words += ", sinks of " + options.sink;
  if (options.scoring.dropout.probability > 0)
    words += format(", dropout %g of seed ", options.scoring.dropout.probability) +
             std::to_string(options.dropout_seed);
  return words;
}

nlohmann::ordered_json rank_json(const RankReport& rank) {
  Json entry{{"tokens", rank.tokens},
             {"messages_sent", rank.messages_sent},
             {"bytes_sent", rank.bytes_sent},
             {"all_to_all_messages", rank.all_to_all_messages},
             {"all_to_all_bytes", rank.all_to_all_bytes},
             {"forward_exposed_seconds", rank.forward_exposed_seconds},
             {"backward_exposed_seconds", rank.backward_exposed_seconds},
             {"tensor_bytes", rank.tensor_bytes},
             {"process_bytes", rank.process_bytes}};
  for (std::size_t i = 0; i < result_count; ++i) {
    const ErrorReport& error = rank.errors[i];
    if (error.rows > 0)
      entry[result_name(i)] = {{"ok", error.ok},   {"decides", error.decides}, {"rows", error.rows},
                               {"max", error.max}, {"mean", error.mean},       {"relative", error.relative}};
  }
  return entry;
}

bool RankReport::ok() const {
  return std::all_of(errors.begin(), errors.end(), [](const ErrorReport& error) { return error.ok; });
}

bool RankReport::is_wrong() const {
  return std::ranges::any_of(errors, [](const ErrorReport& error) { return !error.ok && error.decides; });
}

bool RunReport::is_wrong() const { return std::ranges::any_of(ranks, &RankReport::is_wrong); }

bool RunReport::ok() const {
  return std::all_of(ranks.begin(), ranks.end(), [](const RankReport& rank) { return rank.ok(); });
}

std::string to_text(const RunReport& report, const RunOptions& options) {
  const auto files = [&](const std::string& names) {
    return options.is_random() ? std::string("random") : names;
  };
  std::string text = "Attention" + std::string(options.wants_gradients() ? " and its gradients" : "") + ", " +
                     report.dtype + ", on " + counted(static_cast<Index>(report.ranks.size()), "rank") +
                     "; shapes are [B, H, S, D]\n";
  text += "  q       " + to_string(report.q) + "  " + files(options.q) + "\n";
  text += "  k, v    " + to_string(report.kv) + "  " + files(options.k + ", " + options.v) + "\n";
  if (report.bias)
    text += "  bias    " + to_string(*report.bias) + "  " + options.bias + ", " +
            human_bytes(report.bias_bytes) + " a rank" +
            (options.wants_gradients() ? " with its gradient" : "") + "\n";
  text += format("  scores  scale %.6g%s\n", report.scale, mask_words(report, options).c_str());
  text += "  kernel  " + describe(report.backend, largest(report, &RankReport::threads)) + "\n";
  text += partition_words(report, options) + why_words(options) + balance_words(report) +
          moved_words(report, options);
  text += "  time    read " + human_seconds(report.read_seconds) + ", forward " +
          human_seconds(report.forward_seconds);
  if (options.wants_gradients()) text += ", backward " + human_seconds(report.backward_seconds);
  if (options.check) text += ", check " + human_seconds(report.check_seconds);
  if (!options.out.empty()) text += ", write " + human_seconds(report.write_seconds);
  if (report.expected_seconds > 0)
    text += "; expected " + human_seconds(report.expected_seconds) + " of computing";
  text += "\n  waited  forward " + human_seconds(largest(report, &RankReport::forward_exposed_seconds));
  if (options.wants_gradients())
    text += ", backward " + human_seconds(largest(report, &RankReport::backward_exposed_seconds));
  text += ": communication that computing did not hide";
  text += "\n  memory  a rank's tensors at most " + human_bytes(largest(report, &RankReport::tensor_bytes)) +
          ", its process at most " + human_bytes(largest(report, &RankReport::process_bytes)) + "\n";
  if (options.check) text += "\nErrors against the dense reference in double:\n" + check_table(report);
  const bool is_sampled = report.q.seq > check_all_rows_up_to, has_sink = !options.sink.empty();
  if (options.check && options.wants_gradients() && is_sampled && (report.bias || has_sink))
    text += format("  Above 16k tokens %s not checked.\n", !report.bias ? "dsink is"
                                                           : has_sink   ? "dk, dv and dsink are"
                                                                        : "dk and dv are");
  return text;
}

std::string to_json(const RunReport& report, const RunOptions& options) {
  const auto extents = [](const Shape& shape) {
    return std::vector<Index>{shape.batch, shape.heads, shape.seq, shape.dim};
  };
  const Index tile = options.same_bits ? options.tile_of_same_bits() : options.tile_of_readable();
  Json json{{"ok", report.ok()},
            {"q_shape", extents(report.q)},
            {"kv_shape", extents(report.kv)},
            {"value_dim", report.kv.value_dim},
            {"dtype", report.dtype},
            {"scale", report.scale},
            {"softcap", options.softcap.value_or(0)},
            {"causal", options.causal},
            {"window", options.window},
            {"documents", options.documents},
            {"prefix", options.mask.prefix.value_or(0)},
            {"blocks", options.mask.blocks},
            {"sink_tokens", options.mask.sink_tokens.value_or(0)},
            {"global_tokens", options.mask.global_tokens},
            {"chunk", options.mask.chunk.value_or(0)},
            {"intervals", options.mask.intervals},
            {"alibi", options.alibi},
            {"bias_bytes", report.bias_bytes},
            {"dropout", options.scoring.dropout.probability},
            {"dropout_seed", options.dropout_seed},
            {"q_offset", report.q_offset},
            {"parallel", options.parallel},
            {"ulysses", report.ulysses},
            {"placement", options.placement},
            {"transport", report.backend.transport},
            {"kv_dtype", report.backend.wire},
            {"device", report.backend.device},
            {"engine", report.backend.engine},
            {"isa", report.backend.isa},
            {"threads", largest(report, &RankReport::threads)},
            {"tile", options.same_bits || report.backend.engine == "readable" ? Json(tile) : Json()},
            {"same_bits", options.tile_of_same_bits()},
            {"ranks", report.ranks.size()},
            {"hops", hops(report, options)},
            {"messages", total(report, &RankReport::messages_sent)},
            {"bytes_moved", total(report, &RankReport::bytes_sent)},
            {"all_to_all_bytes", total(report, &RankReport::all_to_all_bytes)},
            {"expected_seconds", report.expected_seconds},
            {"read_seconds", report.read_seconds},
            {"forward_seconds", report.forward_seconds},
            {"forward_exposed_seconds", largest(report, &RankReport::forward_exposed_seconds)},
            {"backward_seconds", report.backward_seconds},
            {"backward_exposed_seconds", largest(report, &RankReport::backward_exposed_seconds)},
            {"check_seconds", report.check_seconds},
            {"write_seconds", report.write_seconds},
            {"tensor_bytes", largest(report, &RankReport::tensor_bytes)},
            {"process_bytes", largest(report, &RankReport::process_bytes)},
            {"warnings", report.warnings}};
  if (!options.is_random()) json["files"] = {{"q", options.q}, {"k", options.k}, {"v", options.v}};
  if (!options.dout.empty()) json["files"]["dout"] = options.dout;
  if (!options.bias.empty()) json["files"]["bias"] = options.bias;
  if (!options.sink.empty()) json["files"]["sink"] = options.sink;
  if (options.is_random()) json["seed"] = options.seed;
  if (!options.why.empty()) json["auto"] = options.why;
  if (const std::optional<Balance>& balance = report.balance)
    json["balance"] = {{"tiles", balance->tiles},     {"bound", balance->bound},
                       {"busiest", balance->busiest}, {"finish", balance->finish},
                       {"hop_tokens", balance->hops}, {"ranges", balance->ranges}};
  for (const RankReport& rank : report.ranks) json["per_rank"].push_back(rank_json(rank));
  // File names may hold bytes that are not UTF-8.
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace ring_attention
