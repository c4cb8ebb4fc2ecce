/// \file
/// `RankContext`: what a rank of a mesh is to a model: whom it sums with, which tokens it has, how it attends.
#pragma once

#include "model/attention.hpp"
#include "model/gradient_sum.hpp"
#include "model/mesh.hpp"
#include "model/shape.hpp"
#include "ring_attention/parallel/all_gather/all_gather.hpp"
#include "ring_attention/parallel/ulysses/ulysses.hpp"

namespace ring_attention::model {

/// | sum of | over | why |
/// |---|---|---|
/// | partial outputs of wo and w2; gradients of the inputs of wq, wk, wv and w1 | `tensor` | each rank has some columns |
/// | gradients of all weights, labels, loss | `replicas` | each rank has seen its tokens |
/// | gradients of wk and wv | `kv_replicas`, too | each rank has seen some query heads of a K,V head |
///
/// Gradients of the norms and the embedding need no sum over `tensor`: each of its ranks has the whole one.
/// The default is one process with no tokens.
template <class T>
struct RankContext {
  Group tensor = std::make_shared<OneRank>(), kv_replicas = tensor, replicas = tensor;
  TokenRanges tokens;        ///< positions of this rank's tokens in the sequence
  Index first_sequence = 0;  ///< of this rank in the batch
  std::shared_ptr<Attention<T>> attention = std::make_shared<OneDevice<T>>();
  RowTiles rows;  ///< of the products, and what gradients are summed in
};

/// Whole sequences in one process, not with CpuOptions::same_bits.
template <class T>
[[nodiscard]] RankContext<T> one_process(Index seq, const CpuOptions& options = {}) {
  require(options.same_bits == 0, "one_process: a mesh of one rank has the bits of other meshes");
  RankContext<T> place;
  place.tokens = whole(seq);
  place.attention = std::make_shared<OneDevice<T>>(options);
  place.rows = options.isa;
  return place;
}

/// How the ranks along ulysses and ring attend.
enum class ContextKind {
  hybrid,     ///< Ulysses and a ring
  all_gather  ///< K,V of all of them on each; needs a ulysses axis of 1
};

/// The groups of a mesh do not depend on the sequence: make them once, after require_shareable().
struct ModelLinks {
  /// Collective. \param made_links  along mesh.ulysses() and mesh.ring()
  /// \param told  outlive this object
  ModelLinks(std::shared_ptr<Links> made_links, const Mesh& of, const ModelShape& shape, Observers told = {})
      : links(std::move(made_links)),
        observers(std::move(told)),
        mesh(of),
        part(shape, mesh.tensor().index(mesh.rank()), mesh.shape().tensor),
        tensor(group(mesh.tensor())),
        kv_replicas(group(part.kv_replicas)),
        replicas(group(mesh.replicas())) {}

  [[nodiscard]] Group group(const Axis& axis) const {
    return observed(links->group(axis), observers, PieceExchange::Along::other, axis);
  }

  std::shared_ptr<Links> links;
  Observers observers;
  Mesh mesh;
  TensorPart part;
  Group tensor, kv_replicas, replicas;
};

/// The tokens of each rank along the ring; with CpuOptions::same_bits they are whole tiles.
/// \throws InputError when the same bits are asked for on a mesh that shares heads
[[nodiscard]] inline Placement shards_of(const Mesh& mesh, PlacementKind kind, Index seq,
                                         const CpuOptions& options) {
  if (options.same_bits == 0) return {kind, seq, mesh.shape().ring};
  if (mesh.shape().tensor * mesh.shape().ulysses > 1)
    throw InputError("the same bits", to_string(mesh.shape()), "use ranks along ring and data only");
  return {kind, Tiling(options.same_bits).cuts(seq), mesh.shape().ring};
}

/// The place of a rank for sequences of `seq` tokens, `batch` of them over all ranks.
template <class T>
[[nodiscard]] RankContext<T> rank_context(const ModelLinks& of, PlacementKind kind, Index seq, Index batch,
                                          ContextKind context = ContextKind::hybrid,
                                          const CpuOptions& options = {}) {
  const Mesh& mesh = of.mesh;
  const Placement shards = shards_of(mesh, kind, seq, options);
  const Division division = context == ContextKind::all_gather ? all_gather() : hybrid(mesh.shape().ulysses);
  if (context == ContextKind::all_gather && mesh.shape().ulysses != 1)
    throw InputError("all-gather", "a ulysses axis of " + std::to_string(mesh.shape().ulysses), "use 1");
  RankContext<T> place{
      of.tensor,
      of.kv_replicas,
      of.replicas,
      mesh.grid().slice(shards),
      mesh.sequences(batch).begin,
      std::make_shared<SharedContext<T>>(of.links, division, mesh.grid(), shards, options, of.observers),
      options.isa};
  if (options.same_bits > 0)
    place.rows = {options.isa, place.tokens, Tiling(options.same_bits), batch * shards.pieces()};
  return place;
}

}  // namespace ring_attention::model
