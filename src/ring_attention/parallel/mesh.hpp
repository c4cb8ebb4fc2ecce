/// \file
/// `Mesh`: the four axes along which ranks share a model; `MpiMesh` and `LoopbackMesh`: their lines.
///
/// Fastest first: tensor, ulysses, ring, data. Neighbours exchange most, so they should have the fastest links
/// (Fang, Zhao, USP, arXiv 2405.07719; Llama 3, arXiv 2407.21783, 3.3.2).
#pragma once

#include "ring_attention/parallel/hybrid.hpp"
#include "ring_attention/parallel/line.hpp"
#include "ring_attention/parallel/loopback_all_to_all.hpp"
#include "ring_attention/parallel/mpi_all_to_all.hpp"
#include "ring_attention/ring/transports/overlapped.hpp"

namespace ring_attention {

/// How many ranks there are along each axis.
struct MeshShape {
  int tensor =
      1;  ///< share heads and hidden numbers of the feed-forward part: each has a part of the weights
  int ulysses = 1;  ///< share the heads of attention; each has some tokens everywhere else
  int ring = 1;     ///< each has some tokens
  int data = 1;     ///< each has some sequences

  [[nodiscard]] int ranks() const { return tensor * ulysses * ring * data; }
  friend bool operator==(const MeshShape&, const MeshShape&) = default;
};

/// `tensor 2, ulysses 1, ring 4, data 1`.
[[nodiscard]] std::string to_string(const MeshShape& shape);

/// The place of a rank.
class Mesh {
 public:
  /// \throws InputError unless every axis has a rank and their product is `ranks`
  Mesh(int rank, int ranks, const MeshShape& shape);

  [[nodiscard]] const MeshShape& shape() const { return shape_; }
  [[nodiscard]] int rank() const { return rank_; }

  [[nodiscard]] Axis tensor() const { return {1, shape_.tensor}; }
  [[nodiscard]] Axis ulysses() const { return {shape_.tensor, shape_.ulysses}; }
  [[nodiscard]] Axis ring() const { return {shape_.tensor * shape_.ulysses, shape_.ring}; }
  [[nodiscard]] Axis data() const { return {context().stride * context().size, shape_.data}; }
  /// The ranks that share sequences: ulysses and ring.
  [[nodiscard]] Axis context() const { return {shape_.tensor, shape_.ulysses * shape_.ring}; }
  /// The ranks that have the same weights: ulysses, ring and data. They sum the gradients of the weights.
  [[nodiscard]] Axis replicas() const { return {shape_.tensor, context().size * shape_.data}; }

  /// The place among the ranks of context().
  [[nodiscard]] HybridPlace place() const { return {context().index(rank_), context().size, shape_.ulysses}; }
  /// The sequences of a batch that this rank has.
  [[nodiscard]] Interval sequences(Index batch) const;

 private:
  int rank_;
  MeshShape shape_;
};

/// The lines of a rank over MPI. `Link` is the transport of the ring.
template <class Link = OverlappedTransport>
class MpiMesh {
 public:
  /// Collective. \throws InputError as Mesh
  MpiMesh(const Communicator& world, const MeshShape& shape)
      : world_(world), mesh_(world.rank(), world.size(), shape), ring_(communicator(mesh_.ring())) {}

  [[nodiscard]] const Mesh& mesh() const { return mesh_; }
  /// A line along any axis of the mesh. Collective.
  [[nodiscard]] Line line(const Axis& axis) const {
    return Line(std::make_shared<OwnLink>(communicator(axis)));
  }
  /// The ring. \param channel  0: K,V; 1: their gradients
  [[nodiscard]] Link transport(int channel) const { return Link(*ring_, channel); }

 private:
  /// An all-to-all that keeps its communicator.
  struct OwnLink : MpiAllToAll {
    explicit OwnLink(std::shared_ptr<const Communicator> line) : MpiAllToAll(*line), communicator(line) {}
    std::shared_ptr<const Communicator> communicator;
  };

  [[nodiscard]] std::shared_ptr<const Communicator> communicator(const Axis& axis) const {
    return std::make_shared<const Communicator>(world_, axis.line(world_.rank()));
  }

  const Communicator& world_;
  Mesh mesh_;
  std::shared_ptr<const Communicator> ring_;
};

/// The same among the threads of one process.
class LoopbackMesh {
 public:
  LoopbackMesh(LoopbackWorld& world, int rank, const MeshShape& shape)
      : world_(world), mesh_(rank, world.ranks(), shape) {}

  [[nodiscard]] const Mesh& mesh() const { return mesh_; }
  [[nodiscard]] Line line(const Axis& axis) const {
    return Line(std::make_shared<LoopbackAllToAll>(world_, mesh_.rank(), axis));
  }
  [[nodiscard]] LoopbackTransport transport(int channel) const {
    return LoopbackTransport(world_, mesh_.rank(), channel, mesh_.ring());
  }

 private:
  LoopbackWorld& world_;
  Mesh mesh_;
};

}  // namespace ring_attention
