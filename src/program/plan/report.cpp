#include "program/plan/report.hpp"

#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/table.hpp"
#include "ring_attention/core/counted.hpp"
#include "ring_attention/core/error.hpp"
#include "ring_attention/core/text.hpp"

namespace ring_attention {
namespace {

using Json = nlohmann::ordered_json;

constexpr int longest_simulated_ring = 20000;  // the recurrence takes the square of that

std::string describe(const plan::Mesh& mesh) {
  return format("tensor %d, ulysses %d, ring %d, data %d", mesh.tensor, mesh.ulysses, mesh.ring, mesh.data) +
         (mesh.pipeline > 1 ? format(", pipeline %d", mesh.pipeline) : "");
}

std::string gigabytes(double bytes) { return format(bytes < 1e10 ? "%.2f GB" : "%.1f GB", bytes * 1e-9); }

PlannedMesh planned(const plan::Workload& work, const plan::Machine& machine,
                    const plan::Candidate& candidate) {
  PlannedMesh mesh{candidate, std::nullopt};
  const plan::StepTime& time = candidate.time;
  if (work.phase != plan::Phase::decode && candidate.mesh.pipeline == 1 &&
      candidate.mesh.ring <= longest_simulated_ring)
    mesh.simulated = time.total() - time.attention - time.merge - time.ring +
                     plan::simulated_ring(work, candidate.mesh, machine);
  return mesh;
}

const char* step_word(plan::Phase phase) {
  return phase == plan::Phase::training ? "a step" : phase == plan::Phase::prefill ? "a prefill" : "a token";
}

const char* phase_word(plan::Phase phase) {
  return phase == plan::Phase::training ? "training" : phase == plan::Phase::prefill ? "prefill" : "decode";
}

/// Tokens that a step takes or makes, of all ranks.
double tokens_a_step(const plan::Workload& work) {
  return work.phase == plan::Phase::decode ? work.batch : work.batch * work.context;
}

std::string seconds_or_none(double seconds) { return seconds > 0 ? human_seconds(seconds) : "-"; }

std::string signed_text(double value, std::string (*text)(double)) {
  return (value < 0 ? "-" : "+") + text(std::abs(value));
}

/// "+24.3 ms, of which merge +21.8 ms": the difference of two accounts, and the part that differs most.
std::string difference(const std::vector<plan::Part>& from, const std::vector<plan::Part>& to,
                       std::string (*text)(double)) {
  plan::Part largest;
  for (std::size_t i = 0; i < from.size(); ++i)
    if (std::abs(to[i].value - from[i].value) >= std::abs(largest.value))
      largest = {from[i].name, to[i].value - from[i].value};
  return signed_text(plan::sum(to) - plan::sum(from), text) + ", of which " + largest.name + " " +
         signed_text(largest.value, text);
}

std::string why_text(const PlanReport& report) {
  std::string text;
  const plan::Candidate& best = report.best();
  for (std::size_t i = 1; i < report.meshes.size(); ++i) {
    const plan::Candidate& other = report.meshes[i].candidate;
    text += "  " + describe(other.mesh) + ": " +
            (best.fits ? difference(best.time.parts(), other.time.parts(), human_seconds)
                       : difference(best.memory, other.memory, gigabytes)) +
            "\n";
  }
  if (best.mesh.ring > 1 && report.work.phase != plan::Phase::decode) {
    const plan::RingStep step =
        plan::forward_step(report.work.one_pass(best.mesh), best.mesh, report.machine);
    const double shard = report.work.context / best.mesh.ring;
    text += format(
        "  a hop takes %s and a step %s: shards of %.0f tokens, hops hide from %.0f on, latency "
        "and merges aside\n",
        human_seconds(step.hop).c_str(), human_seconds(step.compute).c_str(), shard, report.smallest_shard());
  }
  if (text.empty()) return best.fits ? "  no other mesh that fits is near\n" : "  no other mesh is near\n";
  return text;
}

/// The bubble and the micro-batches of a pipeline; nothing without one.
std::string pipeline_text(const PlanReport& report) {
  const plan::Workload& work = report.work;
  const plan::Mesh& mesh = report.best().mesh;
  if (mesh.pipeline == 1) return "";
  const double micro_batches = work.micro_batches(mesh);
  return format(
      "  a pipeline of %d stages, %s each: %.0f micro-batches, at most %.1f in flight, a bubble of "
      "%.1f %% of the rest\n",
      mesh.pipeline, counted(work.chunks, "chunk").c_str(), micro_batches, plan::passes_in_flight(work, mesh),
      100 * (mesh.pipeline - 1) / (work.chunks * micro_batches));
}

std::string account(const PlanReport& report) {
  const plan::Candidate& best = report.best();
  Table memory({"memory of a rank", "", "share"});
  const double bytes = plan::sum(best.memory), seconds = best.seconds();
  const auto share = [](double part, double all) { return format("%.1f %%", 100 * part / all); };
  for (const plan::Part& part : best.memory)
    memory.row({part.name, gigabytes(part.value), share(part.value, report.machine.memory)});
  memory.row({"all", gigabytes(bytes), share(bytes, report.machine.memory)});
  Table time({std::string("time of ") + step_word(report.work.phase), "", "share"});
  for (const plan::Part& part : best.time.parts())
    time.row({part.name, seconds_or_none(part.value), share(part.value, seconds)});
  time.row({"all", human_seconds(seconds), share(seconds, seconds)});
  time.row(
      {"exposed communication", seconds_or_none(best.time.exposed()), share(best.time.exposed(), seconds)});
  return memory.text() + "\n" + time.text() +
         format("  model FLOP utilisation: %.1f %% of %.0f TFLOP/s\n", 100 * report.utilisation(),
                report.machine.peak_flops * 1e-12) +
         pipeline_text(report);
}

std::string verdict(const PlanReport& report) {
  const plan::Candidate& best = report.best();
  const std::string mesh = describe(best.mesh), meshes = report.possible == 1 ? "mesh" : "meshes";
  if (best.fits)
    return format("It fits. The fastest of %zu %s: %s.\n%s takes %s, %.0f tokens/s.\n", report.possible,
                  meshes.c_str(), mesh.c_str(),
                  report.work.phase == plan::Phase::decode    ? "A token of each sequence"
                  : report.work.phase == plan::Phase::prefill ? "A prefill"
                                                              : "A step",
                  human_seconds(best.seconds()).c_str(), tokens_a_step(report.work) / best.seconds());
  return format("It does not fit: the smallest of %zu %s, %s, needs %s of the %s that can be used.%s\n",
                report.possible, meshes.c_str(), mesh.c_str(), gigabytes(plan::sum(best.memory)).c_str(),
                gigabytes(plan::usable_memory * report.machine.memory).c_str(),
                report.enough_ranks ? format(" %d ranks would do.", *report.enough_ranks).c_str() : "");
}

Json mesh_json(const plan::Mesh& mesh) {
  return {{"tensor", mesh.tensor},
          {"ulysses", mesh.ulysses},
          {"ring", mesh.ring},
          {"data", mesh.data},
          {"pipeline", mesh.pipeline}};
}

Json parts_json(const std::vector<plan::Part>& parts) {
  Json json = Json::object();
  for (const plan::Part& part : parts) json[part.name] = part.value;
  return json;
}

Json planned_json(const PlannedMesh& planned) {
  const plan::Candidate& candidate = planned.candidate;
  return {{"mesh", mesh_json(candidate.mesh)},
          {"fits", candidate.fits},
          {"memory_bytes", plan::sum(candidate.memory)},
          {"memory", parts_json(candidate.memory)},
          {"seconds", candidate.seconds()},
          {"time", parts_json(candidate.time.parts())},
          {"exposed_seconds", candidate.time.exposed()},
          {"simulated_seconds", planned.simulated ? Json(*planned.simulated) : Json()}};
}

}  // namespace

double PlanReport::utilisation() const {
  return plan::utilisation(work, best().mesh, machine, best().seconds());
}

double PlanReport::smallest_shard() const {
  const plan::Attention layer = work.attention(best().mesh);
  const double group = static_cast<double>(layer.heads) / plan::sent_kv_heads(layer, best().mesh.ulysses);
  return work.element * machine.attention_rate(layer.dim) /
         (group * plan::ring_link(best().mesh, machine).beta);
}

PlanReport make_plan(const PlanOptions& options) {
  PlanReport report{options.workload(), options.hardware(), static_cast<int>(options.ranks), {}, 0, {}, {}};
  const auto all = plan::candidates(report.work, report.machine, report.ranks, options.wish());
  report.possible = all.size();
  for (const plan::Candidate& candidate : plan::with_neighbours(all))
    report.meshes.push_back(planned(report.work, report.machine, candidate));
  for (const double number :
       {report.smallest_shard(), report.utilisation(), report.meshes.front().simulated.value_or(0),
        tokens_a_step(report.work) / report.best().seconds()})
    if (!std::isfinite(number))
      throw InputError(report.machine.name +
                       ": a number of the plan would be infinite: give rates that a machine can have");
  report.longest = plan::longest_context(report.work, report.machine, report.ranks, options.wish());
  if (!report.best().fits)
    report.enough_ranks = plan::enough_ranks(report.work, report.machine, report.ranks, options.wish());
  return report;
}

std::string to_text(const PlanReport& report) {
  const plan::Workload& work = report.work;
  const plan::Machine& machine = report.machine;
  std::string text =
      format("%s, %.2f G parameters: %s, %.0f x %.0f tokens, on %s of %s\n", work.model.name.c_str(),
             work.model.parameters() * 1e-9, phase_word(work.phase), work.batch, work.context,
             counted(report.ranks, "rank").c_str(), machine.name.c_str());
  text += format("  a device  %.0f TFLOP/s in products, %.0f in attention, %.0f GB at %.2f TB/s\n",
                 machine.linear_flops * 1e-12, machine.attention_rate(work.model.dim()) * 1e-12,
                 machine.memory * 1e-9, machine.memory_rate * 1e-12);
  text += format("  a node    %lld devices, %.0f GB/s between two of them; %s of %.0f GB/s\n",
                 static_cast<long long>(machine.node), machine.link.beta * 1e-9,
                 counted(machine.nics, "NIC").c_str(), machine.nic.beta * 1e-9);
  text += "  source    " + machine.source + "\n\n" + verdict(report) + "\n" + account(report);
  text += "\nWhy this mesh, and not one beside it:\n" + why_text(report);
  if (report.meshes.front().simulated && report.best().mesh.ring > 1)
    text += format("  simulated step by step, it takes %s\n",
                   human_seconds(*report.meshes.front().simulated).c_str());
  text += report.longest.tokens > 0 ? format("\nThe longest context on these ranks: %.0f tokens, with %s.\n",
                                             report.longest.tokens, describe(report.longest.mesh).c_str())
                                    : "\nNo context fits these ranks.\n";
  return text;
}

std::string to_json(const PlanReport& report) {
  const plan::Workload& work = report.work;
  Json json{{"model", work.model.name},
            {"parameters", work.model.parameters()},
            {"machine", report.machine.name},
            {"ranks", report.ranks},
            {"phase", phase_word(work.phase)},
            {"context", work.context},
            {"batch", work.batch},
            {"possible_meshes", report.possible},
            {"best", planned_json(report.meshes.front())},
            {"tokens_per_second", tokens_a_step(work) / report.best().seconds()},
            {"utilisation", report.utilisation()},
            {"neighbours", Json::array()},
            {"smallest_shard", report.smallest_shard()},
            {"longest_context", report.longest.tokens},
            {"longest_context_mesh", report.longest.tokens > 0 ? mesh_json(report.longest.mesh) : Json()},
            {"enough_ranks", report.enough_ranks ? Json(*report.enough_ranks) : Json()}};
  for (std::size_t i = 1; i < report.meshes.size(); ++i)
    json["neighbours"].push_back(planned_json(report.meshes[i]));
  return json.dump(2) + "\n";
}

}  // namespace ring_attention
