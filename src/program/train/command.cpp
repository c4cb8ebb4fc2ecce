#include "program/train/job.hpp"

namespace ring_attention {

int train_command(const Communicator& comm, const TrainOptions& options, Activity& activity) {
  allocation::keep_freed();
  ChosenMesh mesh;
  agree(comm, [&] { mesh = mesh_of(options, comm.size()); });
  return options.dtype == "float64" ? TrainJob<double>(comm, options, mesh, activity)()
                                    : TrainJob<float>(comm, options, mesh, activity)();
}

}  // namespace ring_attention
