/// \file
/// `Mesh`: how work is cut over ranks.
#pragma once

namespace ring_attention::plan {

/// Ranks = tensor * ulysses * ring * data * pipeline; tensor ranks are neighbours, then those of Ulysses, of the ring, of
/// the data, of the stages of a pipeline.
struct Mesh {
  int tensor = 1, ulysses = 1, ring = 1, data = 1, pipeline = 1;

  [[nodiscard]] int context() const { return ulysses * ring; }  ///< ranks that share a sequence
  [[nodiscard]] int replicas() const {
    return context() * data;
  }  ///< ranks with the same part of the weights
  [[nodiscard]] int ranks() const { return tensor * replicas() * pipeline; }
  friend bool operator==(const Mesh&, const Mesh&) = default;
};

}  // namespace ring_attention::plan
