#include "program/bench/report.hpp"

#include <nlohmann/json.hpp>

#include "cli/table.hpp"
#include "ring_attention/core/text.hpp"

namespace ring_attention {
namespace {

using Json = nlohmann::ordered_json;

/// What computes, and a warning when the times mean nothing.
std::string kernel_of(const BenchReport& report) {
  const BackendDescription& backend = report.backend;
  return words_of(backend, backend.threads) +
         (backend.device == "cpu" ? "" : ", " + backend.transport + " transport") +
         (backend.warning.empty() ? "" : "; " + backend.warning);
}

std::string ratio(double measured, double model) { return format("%.2f", measured / model); }

}  // namespace

double BenchReport::smallest_shard(const BenchOptions& options) const {
  const double group = static_cast<double>(options.heads) / static_cast<double>(options.kv().heads);
  const Rates& rates = placements.front().rates;
  return static_cast<double>(element_bytes) * rates.flops_per_second / (2 * group * rates.bytes_per_second);
}

std::string to_text(const BenchReport& report, const BenchOptions& options) {
  const Rates& rates = report.placements.front().rates;
  std::string text =
      "Ring attention, forward, on " + counted(report.ranks, "rank") + "; shapes are [B, H, S, D]\n";
  text += "  q       " + to_string(options.q()) + (options.causal ? ", causal" : "") + "\n";
  text += "  k, v    " + to_string(options.kv()) + ", travel in " + report.backend.wire + "\n";
  text += "  kernel  " + kernel_of(report) + "\n";
  text += format("  F       %.4g GFLOP/s a rank\n", rates.flops_per_second * 1e-9);
  if (report.ranks > 1) {
    text += format("  beta    %.4g GB/s a rank, %s a hop\n", rates.bytes_per_second * 1e-9,
                   human_bytes(report.hop_bytes).c_str());
    const Index shard = (options.seq + report.ranks - 1) / report.ranks;
    const double smallest = report.smallest_shard(options);
    text += format("  c*      %.4g tokens: shards of %lld are %s for a hop to hide\n", smallest,
                   static_cast<long long>(shard),
                   static_cast<double>(shard) >= smallest ? "long enough" : "too short");
  }
  Table table({"placement", "compute", "messages", "in turn", "x model", "overlapped", "x model", "waited",
               "x ideal"});
  for (const PlacementTimes& times : report.placements)
    table.row({times.placement, human_seconds(times.compute),
               report.ranks > 1 ? human_seconds(times.messages) : "-", human_seconds(times.in_turn),
               ratio(times.in_turn, times.model.in_turn), human_seconds(times.overlapped),
               ratio(times.overlapped, times.model.overlapped), human_seconds(times.exposed),
               ratio(times.overlapped, times.model.ideal)});
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
            {"kernel", kernel_of(report)},       {"transport", report.backend.transport},
            {"wire", report.backend.wire},       {"hop_bytes", report.hop_bytes},
            {"repetitions", options.repetitions}};
  for (const PlacementTimes& times : report.placements)
    json["placements"].push_back({{"placement", times.placement},
                                  {"flops_per_second", times.rates.flops_per_second},
                                  {"bytes_per_second", times.rates.bytes_per_second},
                                  {"compute_seconds", times.compute},
                                  {"messages_seconds", times.messages},
                                  {"in_turn_seconds", times.in_turn},
                                  {"in_turn_model_seconds", times.model.in_turn},
                                  {"overlapped_seconds", times.overlapped},
                                  {"overlapped_model_seconds", times.model.overlapped},
                                  {"exposed_seconds", times.exposed},
                                  {"ideal_seconds", times.model.ideal}});
  return json.dump(2) + "\n";
}

}  // namespace ring_attention
