#include "plan/step_time.hpp"

#include "plan/pairs.hpp"
#include "plan/ring_recurrence.hpp"
#include "ring_attention/core/error.hpp"

namespace ring_attention::plan {
namespace {

double in_double(Index n) { return static_cast<double>(n); }

/// The link of a collective over ranks that are `stride` apart: a library uses all NICs of a node for one.
LinkClass collective_link(const Machine& machine, int stride, int size) {
  if (Index{stride} * size <= machine.node) return machine.link;
  const double beta =
      in_double(machine.nics) * machine.nic.beta / std::min<double>(stride, in_double(machine.node));
  return {machine.nic.alpha, std::min(machine.link.beta, beta)};
}

/// Seconds of attention's forward on a rank, one layer, causal, in equal parts.
double attention_seconds(const Workload& work, const Mesh& mesh, const Machine& machine) {
  const Attention layer = work.attention(mesh);
  const double pairs = work.context * (work.context + 1) / 2 / mesh.context();
  return 4 * layer.batch * in_double(layer.heads * layer.dim) * pairs / machine.attention_rate(layer.dim);
}

/// Seconds of two all-reduces of a layer's activations.
double tensor_seconds(const Workload& work, const Mesh& mesh, const Machine& machine, double tokens) {
  if (mesh.tensor == 1) return 0;
  const LinkClass link = collective_link(machine, 1, mesh.tensor);
  return 4 * link.alpha + tensor_bytes(tokens, work.model.hidden, work.element, mesh.tensor) / link.beta;
}

/// What a layer's forward, and its backward, cost in communication of weights that computing does not hide.
double weight_seconds(const Workload& work, const Mesh& mesh, const Machine& machine, double forward,
                      double backward) {
  if (mesh.replicas() == 1 || work.phase != Phase::training) return 0;
  const LinkClass link = collective_link(machine, mesh.tensor, mesh.replicas());
  const double bytes =
      weight_bytes(work.model.layer_parameters() / mesh.tensor, work.element, mesh.replicas());
  const double once = link.seconds(bytes);
  if (!machine.hides) return 3 * once;
  return std::max(0.0, once - forward) + std::max(0.0, 2 * once - backward);
}

StepTime decode_time(const Workload& work, const Mesh& mesh, const Machine& machine) {
  const ModelShape& model = work.model;
  const Attention layer = work.attention(mesh);
  const double layers = in_double(model.layers), b = work.sequences(mesh);
  const double weights = model.parameters() / mesh.tensor;
  const double cache = 2 * layer.bytes(in_double(layer.kv_heads));
  const double flops = 4 * b * layer.tokens * in_double(layer.heads * layer.dim);
  StepTime time;
  time.linear =
      std::max(2 * weights * b / machine.linear_flops, weights * work.element / machine.memory_rate);
  time.attention = layers * std::max(cache / machine.memory_rate, flops / machine.attention_rate(layer.dim));
  time.tensor = layers * tensor_seconds(work, mesh, machine, b);
  if (mesh.context() > 1) {  // two exchanges
    const LinkClass link = collective_link(machine, mesh.tensor, mesh.context());
    const double states = b * decode_bytes(layer.heads, layer.dim, float_bytes, mesh.context());
    time.all_to_all = layers * (2 * link.alpha + states / link.beta);
  }
  return time;
}

double parcel_bytes(const Workload& work, const Mesh& mesh, double element) {
  const Attention layer = work.attention(mesh);
  return 2 * layer.bytes(sent_kv_heads(layer, mesh.ulysses)) / layer.element * element;
}

}  // namespace

std::vector<Part> StepTime::parts() const {
  std::vector<Part> all{{"linear", linear},  {"attention", attention},   {"merge", merge},
                        {"tensor", tensor},  {"all-to-all", all_to_all}, {"ring", ring},
                        {"weights", weights}};
  if (bubble > 0) all.insert(all.end(), {{"stages", stages}, {"bubble", bubble}});
  return all;
}

RingStep forward_step(const Workload& work, const Mesh& mesh, const Machine& machine) {
  const double merge = mesh.ring > 1 ? merge_seconds(work.attention(mesh), machine) : 0;
  RingStep step{attention_seconds(work, mesh, machine) / mesh.ring + merge, merge};
  if (mesh.ring > 1) step.hop = ring_link(mesh, machine).seconds(parcel_bytes(work, mesh, work.element));
  return step;
}

RingStep backward_step(const Workload& work, const Mesh& mesh, const Machine& machine) {
  RingStep step = forward_step(work, mesh, machine);
  step.compute = (step.compute - step.merge) * backward_flops / backward_rate + step.merge;
  if (mesh.ring > 1) {
    step.gradient_hop = ring_link(mesh, machine).seconds(parcel_bytes(work, mesh, float_bytes));
    step.hop += step.gradient_hop;
  }
  return step;
}

namespace {

/// All layers, without a pipeline.
StepTime pass_time(const Workload& work, const Mesh& mesh, const Machine& machine) {
  const bool trains = work.phase == Phase::training;
  const ModelShape& model = work.model;
  const double tokens = work.tokens(mesh), layers = in_double(model.layers);
  const Attention layer = work.attention(mesh);
  const RingStep forward = forward_step(work, mesh, machine), backward = backward_step(work, mesh, machine);

  const double linear = 2 * model.layer_parameters() * tokens / mesh.tensor / machine.linear_flops;
  const double logits =
      trains ? 6 * in_double(model.vocab * model.hidden) * tokens / mesh.tensor / machine.linear_flops : 0;
  const double pass = mesh.ring * (forward.compute - forward.merge);
  const double back = trains ? mesh.ring * (backward.compute - backward.merge) : 0;
  const auto exposed = [&](const RingStep& step) { return exposed_hop(step, machine); };
  const Volume there = hybrid_forward(layer, mesh.ulysses, 1);
  const double kept =
      in_double(layer.heads) / (in_double(layer.heads) + sent_kv_heads(layer, mesh.ulysses)) / 2;
  const double all_to_all = all_to_all_seconds(mesh, machine, there.all_to_all);

  StepTime time;
  const double passes = work.recomputes ? 4 : 3;
  time.linear = layers * linear * (trains ? passes : 1) + logits;
  time.attention = layers * (pass + back);
  time.merge = layers * mesh.ring * forward.merge * (trains ? 2 : 1);
  time.tensor = layers * tensor_seconds(work, mesh, machine, tokens) * (trains ? 3 : 1);
  time.all_to_all = layers * all_to_all * (trains ? 3 - kept : 1);  // q, k, v travel again; out was kept
  time.ring = layers * (mesh.ring - 1) * (exposed(forward) + (trains ? exposed(backward) : 0));
  if (trains) time.ring += layers * backward.gradient_hop;
  time.weights = layers * weight_seconds(work, mesh, machine, linear + pass, (passes - 1) * linear + back);
  return time;
}

/// Seconds of a message to the next stage: the residual stream of a micro-batch.
double stage_seconds(const Workload& pass, const Mesh& mesh, const Machine& machine) {
  const double bytes = pass.tokens(mesh) * in_double(pass.model.hidden) * pass.element / mesh.tensor;
  const bool inside = mesh.ranks() <= machine.node;
  return (inside ? machine.link : machine.shared_nic(in_double(machine.node))).seconds(bytes);
}

StepTime pipeline_time(const Workload& work, const Mesh& mesh, const Machine& machine) {
  const Workload pass = work.one_pass(mesh);
  const double micro_batches = work.micro_batches(mesh), share = micro_batches / mesh.pipeline;
  StepTime time = pass_time(pass, mesh, machine);
  time.weights = 0;
  const double one_pass = time.total() / mesh.pipeline;
  for (double* part :
       {&time.linear, &time.attention, &time.merge, &time.tensor, &time.all_to_all, &time.ring})
    *part *= share;
  time.stages = 2 * micro_batches * work.chunks * stage_seconds(pass, mesh, machine);
  time.bubble = time.total() * (mesh.pipeline - 1) / (work.chunks * micro_batches);
  if (mesh.replicas() > 1) {
    const double stage = work.model.parameters() / (mesh.pipeline * mesh.tensor);
    const double both = 2 * collective_link(machine, mesh.tensor, mesh.replicas())
                                .seconds(weight_bytes(stage, work.element, mesh.replicas()));
    time.weights = std::max(0.0, both - (machine.hides ? one_pass : 0));
  }
  return time;
}

}  // namespace

StepTime step_time(const Workload& work, const Mesh& mesh, const Machine& machine) {
  if (work.phase == Phase::decode) return decode_time(work, mesh, machine);
  return mesh.pipeline > 1 ? pipeline_time(work, mesh, machine) : pass_time(work, mesh, machine);
}

double model_flops(const Workload& work) {
  const ModelShape& model = work.model;
  const double times = work.phase == Phase::training ? 3 : 1, width = in_double(model.heads * model.dim());
  const bool decodes = work.phase == Phase::decode;
  const double tokens = work.batch * (decodes ? 1 : work.context);
  const double seen = decodes ? work.context : (work.context + 1) / 2;  // keys of the average query
  double products = 2 * in_double(model.layers) * model.layer_parameters();
  if (work.phase != Phase::prefill) products += 2 * in_double(model.vocab * model.hidden);  // the logits
  return times * tokens * (products + 4 * in_double(model.layers) * width * seen);
}

double utilisation(const Workload& work, const Mesh& mesh, const Machine& machine, double seconds) {
  return model_flops(work) / (seconds * mesh.ranks() * machine.peak_flops);
}

namespace {

/// Seconds of one pass of one layer. The hop into rank r comes from another node when r is the first of its node.
double simulated_pass(const Workload& work, const Mesh& mesh, const Machine& machine, const RingStep& step,
                      double kv_bytes, double gradient_bytes) {
  const int ring = mesh.ring;
  const double c = work.context / ring, average = c * (work.context + 1) / 2 / ring;
  const StepPairs pairs = step_pairs(PlacementKind::zigzag, true, c);
  const double own = (step.compute - step.merge) * pairs.own / average + step.merge;
  const double other = (step.compute - step.merge) * pairs.earlier / average + step.merge;

  const LinkClass fast = ring_link(mesh, machine, true), slow = ring_link(mesh, machine);
  const double in_node = std::max(1.0, in_double(machine.node) / (mesh.tensor * mesh.ulysses));
  std::vector<double> kv(static_cast<std::size_t>(ring), fast.seconds(kv_bytes));
  std::vector<double> gradient(kv.size(), fast.seconds(gradient_bytes));
  for (double first = 0; first < ring; first += in_node) {
    kv[static_cast<std::size_t>(first)] = slow.seconds(kv_bytes);
    gradient[static_cast<std::size_t>(first)] = slow.seconds(gradient_bytes);
  }
  const bool backward = gradient_bytes > 0;
  const int hops = ring == 1 ? 0 : (backward ? ring : ring - 1);
  const auto hop = [&](int r, int t) {
    const auto i = static_cast<std::size_t>(r);
    return (t + 1 < ring ? kv[i] : 0.0) + (t > 0 ? gradient[i] : 0.0);
  };
  return ring_seconds(
             ring, ring, hops, [=](int, int t) { return t == 0 ? own : other; }, hop) +
         step.gradient_hop;
}

}  // namespace

double simulated_ring(const Workload& work, const Mesh& mesh, const Machine& machine) {
  require(machine.hides, "simulated_ring: the recurrence is that of a ring that overlaps");
  const double kv = parcel_bytes(work, mesh, work.element), gradient = parcel_bytes(work, mesh, float_bytes);
  double seconds = simulated_pass(work, mesh, machine, forward_step(work, mesh, machine), kv, 0);
  if (work.phase == Phase::training)
    seconds += simulated_pass(work, mesh, machine, backward_step(work, mesh, machine), kv, gradient);
  return in_double(work.model.layers) * seconds;
}

}  // namespace ring_attention::plan
