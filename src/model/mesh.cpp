#include "model/mesh.hpp"

#include <algorithm>

#include "ring_attention/core/error.hpp"
#include "ring_attention/core/text.hpp"
#include "ring_attention/parallel/collectives/sum.hpp"

namespace ring_attention {

std::string to_string(const MeshShape& shape) {
  return format("tensor %d, ulysses %d, ring %d, data %d", shape.tensor, shape.ulysses, shape.ring,
                shape.data);
}

Mesh::Mesh(int rank, int ranks, const MeshShape& shape) : rank_(rank), shape_(shape) {
  require(rank >= 0 && rank < ranks, "Mesh: no such rank");
  if (std::min({shape.tensor, shape.ulysses, shape.ring, shape.data}) < 1)
    throw InputError("mesh " + to_string(shape), "every axis needs a rank",
                     "use 1 for an axis that is not used");
  double product = 1;  // of four int: an integer might overflow
  for (const int size : {shape.tensor, shape.ulysses, shape.ring, shape.data}) product *= size;
  if (product != ranks)
    throw InputError("mesh " + to_string(shape),
                     format("it has %.0f %s", product, product == 1 ? "rank" : "ranks") + ", the job has " +
                         std::to_string(ranks),
                     "use four numbers whose product is " + std::to_string(ranks));
}

Interval Mesh::sequences(Index batch) const { return piece_of(batch, data().index(rank_), shape_.data); }

}  // namespace ring_attention
