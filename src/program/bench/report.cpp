#include "program/bench/report.hpp"

#include <nlohmann/json.hpp>

#include "cli/table.hpp"
#include "ring_attention/core/counted.hpp"
#include "ring_attention/core/text.hpp"
#include "ring_attention/cpu/isa.hpp"

namespace ring_attention {
namespace {

using Json = nlohmann::ordered_json;

/// What computes, and a warning when the times mean nothing.
std::string kernel_of(const BenchReport& report) {
  const BackendDescription& backend = report.backend;
  return describe(backend, backend.threads) +
         (backend.device == "cpu" ? "" : ", " + backend.transport + " transport") +
         (backend.warning.empty() ? "" : "; " + backend.warning);
}

/// `96 queries of 4 panels: 240.0 KiB of 512.0 KiB`: the tile of the fast backward and the cache it has to fit; empty if
/// no such backward ran.
std::string tile_of(const BenchReport& report, const BenchOptions& options) {
  const BackendDescription& backend = report.backend;
  if (backend.engine != "fast" || !options.backward) return "";
  const Isa isa = isa_named(backend.isa);
  const int dim = static_cast<int>(options.dim);
  const cpu::BackwardTile tile = backend.same_bits > 0       ? kernels<float>(isa).exact_backward.tile(dim)
                                 : report.element_bytes == 8 ? kernels<double>(isa).backward.tile(dim)
                                                             : kernels<float>(isa).backward.tile(dim);
  return std::to_string(tile.queries) + " queries of " + counted(tile.panels, "panel") + ": " +
         human_bytes(static_cast<Index>(tile.bytes)) + " of " + human_bytes(static_cast<Index>(tile.cache));
}

std::string ratio(double measured, double model) { return format("%.2f", measured / model); }

/// "-" for a ring of one.
std::string seconds_of_hops(const BenchReport& report, double seconds) {
  return report.rings() > 1 ? human_seconds(seconds) : "-";
}

std::string placement_and_pass(const PlacementTimes& times) {
  return times.placement + (times.pass == "backward" ? ", backward" : "");
}

Table ring_table(const BenchReport& report) {
  Table table({"placement", "compute", "messages", "in turn", "x model", "overlapped", "x model", "waited",
               "x ideal"});
  for (const PlacementTimes& times : report.placements)
    table.row({placement_and_pass(times), human_seconds(times.compute),
               seconds_of_hops(report, times.messages), human_seconds(times.in_turn),
               ratio(times.in_turn, times.model.in_turn), human_seconds(times.overlapped),
               ratio(times.overlapped, times.model.overlapped), human_seconds(times.exposed),
               ratio(times.overlapped, times.model.ideal)});
  return table;
}

Table heads_table(const BenchReport& report) {
  Table table({"placement", "all-to-all", "compute", "messages", "overlapped", "whole", "waited", "x ideal"});
  for (const PlacementTimes& times : report.placements)
    table.row({placement_and_pass(times), human_seconds(times.all_to_all), human_seconds(times.compute),
               seconds_of_hops(report, times.messages), human_seconds(times.overlapped),
               human_seconds(times.whole), human_seconds(times.exposed),
               ratio(times.whole, times.model.ideal)});
  return table;
}

Table gather_table(const BenchReport& report) {
  Table table({"placement", "all-gather", "compute", "whole", "waited", "x ideal"});
  for (const PlacementTimes& times : report.placements)
    table.row({placement_and_pass(times), human_seconds(times.all_to_all), human_seconds(times.compute),
               human_seconds(times.whole), human_seconds(times.exposed),
               ratio(times.whole, times.model.ideal)});
  return table;
}

/// How the ranks divide the work.
std::string partition_words(const BenchReport& report, const BenchOptions& options) {
  if (options.all_gathers()) return "All-gather of K,V";
  if (report.ulysses == 1) return "Ring attention";
  if (report.rings() == 1) return "Ulysses";
  return "Heads over " + std::to_string(report.ulysses) + " ranks, rings of " +
         std::to_string(report.rings());
}

}  // namespace

double BenchReport::smallest_shard(const BenchOptions& options) const {
  const double group = static_cast<double>(options.heads) / static_cast<double>(options.kv().heads);
  const Rates& rates = placements.front().rates;
  return static_cast<double>(element_bytes) * rates.flops_per_second / (2 * group * rates.bytes_per_second);
}

std::string to_text(const BenchReport& report, const BenchOptions& options) {
  const Rates& rates = report.placements.front().rates;
  const bool gather = options.all_gathers();
  const PlacementTimes& first = report.placements.front();
  std::string text = partition_words(report, options) +
                     (options.backward ? ", forward and backward, on " : ", forward, on ") +
                     counted(report.ranks, "rank") + "; shapes are [B, H, S, D]\n";
  text += "  q       " + to_string(options.q()) + (options.causal ? ", causal" : "") + "\n";
  text += "  k, v    " + to_string(options.kv()) + ", travel in " + report.backend.wire + "\n";
  text += "  kernel  " + kernel_of(report) + "\n";
  if (const std::string tile = tile_of(report, options); !tile.empty())
    text += "  tile    " + tile + ", in the backward\n";
  if (!options.why.empty()) text += "  auto    " + options.why + "\n";
  text += format("  F       %.4g GFLOP/s per rank\n", rates.flops_per_second * 1e-9);
  if (first.all_to_all_bytes > 0)
    text += format("  %s %.4g GB/s per rank, %s\n", gather ? "gather " : "a2a    ",
                   static_cast<double>(first.all_to_all_bytes) / first.all_to_all * 1e-9,
                   human_bytes(first.all_to_all_bytes).c_str());
  if (report.rings() > 1 && !gather) {
    text += format("  beta    %.4g GB/s per rank, %s per hop\n", rates.bytes_per_second * 1e-9,
                   human_bytes(report.hop_bytes).c_str());
    const Index shard = (options.seq + report.rings() - 1) / report.rings();
    const double smallest = report.smallest_shard(options);
    text += format("  c*      %.4g tokens: shards of %lld are %s for a hop to hide\n", smallest,
                   static_cast<long long>(shard),
                   static_cast<double>(shard) >= smallest ? "long enough" : "too short");
  }
  const Table table = gather               ? gather_table(report)
                      : report.ulysses > 1 ? heads_table(report)
                                           : ring_table(report);
  text += "\n" + table.text();
  text += format(
      "\n  Medians of %lld, of the slowest rank. Ideal: the work shared out evenly, and no messages.\n",
      static_cast<long long>(options.repetitions));
  return text;
}

std::string to_json(const BenchReport& report, const BenchOptions& options) {
  const auto extents = [](const Shape& shape) {
    return std::vector<Index>{shape.batch, shape.heads, shape.seq, shape.dim};
  };
  Json json{{"q_shape", extents(options.q())},   {"kv_shape", extents(options.kv())},
            {"causal", options.causal},          {"ranks", report.ranks},
            {"parallel", options.parallel},      {"ulysses", report.ulysses},
            {"kernel", kernel_of(report)},       {"transport", report.backend.transport},
            {"kv_dtype", report.backend.wire},   {"hop_bytes", report.hop_bytes},
            {"repetitions", options.repetitions}};
  for (const PlacementTimes& times : report.placements) {
    Json row{{"placement", times.placement},
             {"pass", times.pass},
             {"flops_per_second", times.rates.flops_per_second},
             {"compute_seconds", times.compute},
             {"exposed_seconds", times.exposed},
             {"ideal_seconds", times.model.ideal}};
    if (!options.all_gathers())
      row.update({{"bytes_per_second", times.rates.bytes_per_second},
                  {"messages_seconds", times.messages},
                  {"in_turn_seconds", times.in_turn},
                  {"in_turn_model_seconds", times.model.in_turn},
                  {"overlapped_seconds", times.overlapped},
                  {"overlapped_model_seconds", times.model.overlapped}});
    if (times.whole > 0)
      row.update({{"all_to_all_seconds", times.all_to_all},
                  {"all_to_all_bytes", times.all_to_all_bytes},
                  {"whole_seconds", times.whole}});
    json["placements"].push_back(row);
  }
  if (!options.why.empty()) json["auto"] = options.why;
  return json.dump(2) + "\n";
}

}  // namespace ring_attention
