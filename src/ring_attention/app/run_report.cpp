#include "ring_attention/app/run_report.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "ring_attention/app/table.hpp"
#include "ring_attention/core/text.hpp"

namespace ring_attention {
namespace {

/// The largest, or the sum, of one field over the ranks.
template <class Field>
Field largest(const RunReport& report, Field RankReport::*field) {
  Field most{};
  for (const RankReport& rank : report.ranks) most = std::max(most, rank.*field);
  return most;
}
Index total(const RunReport& report, Index RankReport::*field) {
  Index sum = 0;
  for (const RankReport& rank : report.ranks) sum += rank.*field;
  return sum;
}

nlohmann::ordered_json errors(const ErrorReport& error) {
  return {{"max", error.max}, {"mean", error.mean}, {"relative", error.relative}};
}

std::string check_table(const RunReport& report) {
  Table table(
      {"rank", "tokens", "rows", "out max", "mean", "relative", "lse max", "mean", "relative", "verdict"});
  for (std::size_t r = 0; r < report.ranks.size(); ++r) {
    const RankReport& rank = report.ranks[r];
    table.row({std::to_string(r), std::to_string(rank.tokens), std::to_string(rank.rows_checked),
               human_error(rank.out.max), human_error(rank.out.mean), human_error(rank.out.relative),
               human_error(rank.lse.max), human_error(rank.lse.mean), human_error(rank.lse.relative),
               rank.ok ? "ok" : "FAIL"});
  }
  return table.text();
}

}  // namespace

bool RunReport::ok() const {
  return std::all_of(ranks.begin(), ranks.end(), [](const RankReport& rank) { return rank.ok; });
}

std::string to_text(const RunReport& report, const RunOptions& options) {
  const auto ranks = static_cast<int>(report.ranks.size());
  std::string text = format("%s attention, %s, on %d rank%s\n", options.causal ? "causal" : "full",
                            report.dtype.c_str(), ranks, ranks == 1 ? "" : "s");
  text += "  q      " + to_string(report.q) + (options.is_random() ? "  random" : "  " + options.q) + "\n";
  text += "  k, v   " + to_string(report.kv) +
          (options.is_random() ? "  random" : "  " + options.k + ", " + options.v) + "\n";
  text += format("  scores scale %.6g", report.scale);
  if (options.causal)
    text += format(", query 0 at key position %lld", static_cast<long long>(report.q_offset));
  text += format("; tiles of %lld tokens\n", static_cast<long long>(options.block));
  text += format("  ring   %s: %d steps, %d hops, %lld messages, %s moved in all\n", report.transport.c_str(),
                 ranks, ranks - 1, static_cast<long long>(total(report, &RankReport::messages_sent)),
                 human_bytes(total(report, &RankReport::bytes_sent)).c_str());
  text += format("  time   read %s, ring %s (exposed communication %s), check %s, write %s\n",
                 human_seconds(report.read_seconds).c_str(), human_seconds(report.ring_seconds).c_str(),
                 human_seconds(largest(report, &RankReport::exposed_seconds)).c_str(),
                 options.check ? human_seconds(report.check_seconds).c_str() : "none",
                 options.out.empty() ? "none" : human_seconds(report.write_seconds).c_str());
  text += format("  memory at most %s of tensors a rank in the ring; process at most %s\n",
                 human_bytes(largest(report, &RankReport::tensor_bytes)).c_str(),
                 human_bytes(largest(report, &RankReport::process_bytes)).c_str());
  if (options.check) text += "\nErrors against the dense reference in double:\n" + check_table(report);
  return text;
}

std::string to_json(const RunReport& report, const RunOptions& options) {
  const auto extents = [](const Shape& shape) {
    return std::vector<Index>{shape.batch, shape.heads, shape.seq, shape.dim};
  };
  nlohmann::ordered_json json{{"ok", report.ok()},
                              {"q_shape", extents(report.q)},
                              {"kv_shape", extents(report.kv)},
                              {"dtype", report.dtype},
                              {"causal", options.causal},
                              {"scale", report.scale},
                              {"block", options.block},
                              {"transport", report.transport},
                              {"ranks", report.ranks.size()},
                              {"hops", report.ranks.size() - 1},
                              {"messages", total(report, &RankReport::messages_sent)},
                              {"bytes_moved", total(report, &RankReport::bytes_sent)},
                              {"read_seconds", report.read_seconds},
                              {"ring_seconds", report.ring_seconds},
                              {"exposed_seconds", largest(report, &RankReport::exposed_seconds)},
                              {"check_seconds", report.check_seconds},
                              {"tensor_bytes", largest(report, &RankReport::tensor_bytes)},
                              {"process_bytes", largest(report, &RankReport::process_bytes)},
                              {"warnings", report.warnings}};
  if (options.causal) json["q_offset"] = report.q_offset;
  if (!options.is_random()) json["files"] = {{"q", options.q}, {"k", options.k}, {"v", options.v}};
  if (options.is_random()) json["seed"] = options.seed;
  for (const RankReport& rank : report.ranks) {
    nlohmann::ordered_json entry{{"tokens", rank.tokens},
                                 {"messages_sent", rank.messages_sent},
                                 {"bytes_sent", rank.bytes_sent},
                                 {"exposed_seconds", rank.exposed_seconds},
                                 {"tensor_bytes", rank.tensor_bytes},
                                 {"process_bytes", rank.process_bytes}};
    if (options.check) {
      entry["ok"] = rank.ok;
      entry["rows_checked"] = rank.rows_checked;
      entry["out"] = errors(rank.out);
      entry["lse"] = errors(rank.lse);
    }
    json["per_rank"].push_back(entry);
  }
  return json.dump(2) + "\n";
}

}  // namespace ring_attention
