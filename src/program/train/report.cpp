#include "program/train/report.hpp"

#include <nlohmann/json.hpp>

#include "cli/table.hpp"
#include "program/backend.hpp"
#include "ring_attention/core/counted.hpp"
#include "ring_attention/core/text.hpp"

namespace ring_attention {
namespace {

using Json = nlohmann::ordered_json;

double tokens_per_second(const TrainReport& report) {
  return report.train_seconds > 0 ? static_cast<double>(report.tokens) / report.train_seconds : 0;
}

Json model_json(const model::ModelShape& shape) {
  return {{"vocabulary", shape.vocabulary},
          {"classes", shape.classes},
          {"layers", shape.layers},
          {"width", shape.width},
          {"heads", shape.heads},
          {"kv_heads", shape.kv_heads},
          {"dim", shape.dim},
          {"hidden", shape.hidden}};
}

}  // namespace

Json curve_json(const Curve& curve) {
  Json points = Json::array();
  for (const CurvePoint& point : curve)
    points.push_back(
        {{"step", point.step}, {"length", point.length}, {"loss", point.loss}, {"accuracy", point.accuracy}});
  return points;
}

Json training_json(const TrainOptions& options) {
  Json stages = Json::array();
  for (const model::Stage& stage : options.curriculum()) {
    stages.push_back({{"length", stage.seq}, {"sequences", stage.batch}, {"steps", stage.steps}});
    if (stage.arms > 0) stages.back()["arms"] = stage.arms;
  }
  return {{"task", options.task},
          {"seed", options.seed},
          {"dtype", options.dtype},
          {"rate", options.rate},
          {"same_bits", options.tile_of_same_bits()},
          {"model", model_json(options.shape())},
          {"stages", stages}};
}

std::string heading(const TrainReport& report, const TrainOptions& options) {
  const model::ModelShape shape = options.shape();
  std::string text = "Training, " + options.dtype + ", on " + counted(report.ranks, "rank") + "\n";
  text += "  task    " + std::string(options.task == "lines" ? "line retrieval" : "needle bandit") +
          ", seed " + std::to_string(options.seed) + "\n";
  text += "  model   " + counted(shape.layers, "layer") + " of width " + std::to_string(shape.width) + ", " +
          counted(shape.heads, "query head") + ", " + counted(shape.kv_heads, "KV head") + ", " +
          counted(report.parameters, "parameter") + "\n";
  text += "  mesh    " + to_string(report.mesh.shape) +
          (report.mesh.rest.empty() ? "" : "; " + report.mesh.rest + " takes the ranks that are left") +
          (options.fsdp ? "; weights in pieces (FSDP)" : "") + "\n";
  text += std::string("  kernel  ") + name_of(report.cpu.isa) + ", " + counted(report.cpu.threads, "thread") +
          " per rank" + describe_same_bits(report.cpu.same_bits) + "\n";
  if (!report.resumed_from.empty())
    text += "  resumes at step " + std::to_string(report.first_step) + ", from " + report.resumed_from + "\n";
  return text + "\n    step  length     loss  accuracy  seconds\n";
}

std::string line_of(const CurvePoint& point, double seconds) {
  return format("%8lld  %6lld  %7.4f  %8.4f  %7.1f\n", static_cast<long long>(point.step),
                static_cast<long long>(point.length), point.loss, point.accuracy, seconds);
}

std::string to_text(const TrainReport& report) {
  std::string text = "\n  time    " + human_seconds(report.train_seconds) +
                     format(", %.4g tokens/s; evaluation ", tokens_per_second(report)) +
                     human_seconds(report.evaluate_seconds) + "\n";
  text += "  memory  a rank's tensors at most " + human_bytes(report.tensor_bytes) + "\n";
  if (!report.checkpoint.empty()) text += "  saved   " + report.checkpoint + "\n";
  Table table({"length", "labels", "accuracy", "possible", "window", "accuracy", "possible"});
  for (const Evaluation& row : report.evaluations)
    table.row({std::to_string(row.length), std::to_string(row.labels), format("%.4f", row.whole.accuracy),
               format("%.4f", row.whole.possible), std::to_string(row.window),
               format("%.4f", row.in_window.accuracy), format("%.4f", row.in_window.possible)});
  return text +
         "\nSequences that it has not seen, with all tokens, then with a window. Possible: answers that are\n"
         "in these tokens, and a guess of the others.\n" +
         table.text();
}

std::string to_json(const TrainReport& report, const TrainOptions& options) {
  const MeshShape& mesh = report.mesh.shape;
  Json json{{"training", training_json(options)},
            {"ranks", report.ranks},
            {"mesh",
             {{"tensor", mesh.tensor}, {"ulysses", mesh.ulysses}, {"ring", mesh.ring}, {"data", mesh.data}}},
            {"fsdp", options.fsdp},
            {"isa", name_of(report.cpu.isa)},
            {"threads", report.cpu.threads},
            {"same_bits", report.cpu.same_bits},
            {"parameters", report.parameters},
            {"steps", report.curve.size()},
            {"first_step", report.first_step},
            {"resumed_from", report.resumed_from},
            {"checkpoint", report.checkpoint},
            {"train_seconds", report.train_seconds},
            {"evaluate_seconds", report.evaluate_seconds},
            {"tokens_per_second", tokens_per_second(report)},
            {"tensor_bytes", report.tensor_bytes},
            {"curve", curve_json(report.curve)},
            {"evaluations", Json::array()}};
  for (const Evaluation& row : report.evaluations)
    json["evaluations"].push_back({{"length", row.length},
                                   {"labels", row.labels},
                                   {"accuracy", row.whole.accuracy},
                                   {"possible", row.whole.possible},
                                   {"window", row.window},
                                   {"window_accuracy", row.in_window.accuracy},
                                   {"window_possible", row.in_window.possible}});
  // File names may hold bytes that are not UTF-8.
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace ring_attention
