// Lesson 13, beside the idea: the links of a rank to the other ranks of its mesh, over MPI.
#pragma once

#include "model/rank_context.hpp"
#include "ring_attention/parallel/mpi_links.hpp"

namespace ring_attention::lesson_13 {

using namespace model;  // NOLINT: names of the library's model

/// Collective over `comm`, which outlives them.
inline ModelLinks links_over(const Communicator& comm, const MeshShape& ranks, const ModelShape& shape) {
  const Mesh mesh(comm.rank(), comm.size(), ranks);
  return {std::make_shared<MpiLinks>(comm, mesh.ulysses(), mesh.ring()), mesh, shape};
}

}  // namespace ring_attention::lesson_13
