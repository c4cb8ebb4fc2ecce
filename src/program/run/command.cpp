#include "program/run/command.hpp"

#include "program/cpu_backend.hpp"
#include "program/gpu.hpp"
#include "program/progress_line.hpp"
#include "program/run/job.hpp"
#include "program/run/on_gpus.hpp"

namespace ring_attention {

namespace {

void require_float32(const Communicator& comm, const RunOptions& options) {
  agree(comm, [&] {
    if (options.device == "cuda")
      throw InputError(
          "--device cuda computes in float32 at most, and the arrays are float64: convert them, or leave it "
          "out");
    if (options.kv_dtype == "bf16")
      throw InputError(
          "--kv-dtype bf16 goes with float32, and the arrays are float64: convert them, or leave it out");
    if (options.same_bits)
      throw InputError(
          "--same-bits goes with float32, and the arrays are float64: convert them, or leave it out");
  });
}

/// \param trace  null: none
int run_traced(const Communicator& comm, const RunOptions& given, Activity& activity, Trace* trace) {
  if (!given.is_auto()) (void)agreed_grid(comm, given);  // before any file is opened
  if (given.device == "cuda") require_gpus(comm, given);
  const RunInput input(comm, given);
  RunOptions options = given;
  choose_partition(
      options, options.device,
      {input.q(), input.kv(), options.causal,
       static_cast<Index>(input.is_double() ? sizeof(double) : sizeof(float)), given.wants_gradients()},
      comm.size());
  const RankGrid grid = agreed_grid(comm, options);
  const ProgressLine progress(activity, grid.ring.size, comm.rank() == 0 ? options.progress : "never");
  if (input.is_double()) require_float32(comm, options);
  require_shareable_heads(comm, grid, input.q().heads, input.kv().heads);
  agree(comm, [&] {
    if (options.same_bits && options.wants_gradients())
      require_exact_bias_gradient(input.bias(), input.q(), grid);
  });
  const PlacementChoice placement = agreed_placement(comm, options, options.placement, input.q().seq,
                                                     input.kv().seq, grid.ring.size, input.scoring().mask);
  options.placement = placement.name();
  const RunContext context(comm, options, input, activity, trace, grid, placement);
  if (options.device == "cuda") return run_on_gpus(context);
  if (input.is_double()) return run_on(context, cpu_backend<double>);
  if (options.kv_dtype == "bf16") return run_on(context, cpu_backend<float, Bf16>);
  return run_on(context, cpu_backend<float>);
}

}  // namespace

int run_command(const Communicator& comm, const RunOptions& options, Activity& activity) {
  return with_trace(comm, options.trace, activity,
                    [&](Trace* trace) { return run_traced(comm, options, activity, trace); });
}

}  // namespace ring_attention
