#include "program/train/job.hpp"
#include "ring_attention/core/allocation.hpp"

namespace ring_attention {

namespace {

/// \param trace  null: none
int train_traced(const Communicator& comm, const TrainOptions& options, Activity& activity, Trace* trace) {
  allocation::keep_freed();
  ChosenMesh mesh;
  agree(comm, [&] { mesh = mesh_of(options, comm.size()); });
  return options.dtype == "float64" ? TrainJob<double>(comm, options, mesh, activity, trace)()
                                    : TrainJob<float>(comm, options, mesh, activity, trace)();
}

}  // namespace

int train_command(const Communicator& comm, const TrainOptions& options, Activity& activity) {
  return with_trace(comm, options.trace, activity,
                    [&](Trace* trace) { return train_traced(comm, options, activity, trace); });
}

}  // namespace ring_attention
