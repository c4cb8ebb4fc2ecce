/// \file
/// `RunInput`: the arrays of a run, from files or from a seed, a shard or a head at a time.
#pragma once

#include <array>
#include <optional>

#include "io/npy_file.hpp"
#include "program/run/options.hpp"
#include "ring_attention/attention/scoring.hpp"

namespace ring_attention {

/// The arrays that a run reads.
enum class InputArray { q, k, v, grad_out, bias };

/// Reads the headers first, and elements only on demand. Every call is collective.
class RunInput {
 public:
  /// Opens the files (or prepares the generator) and checks that shapes and types match.
  /// \throws AgreedError on all ranks. Collective.
  RunInput(const Communicator& comm, const RunOptions& options);

  [[nodiscard]] const Shape& q() const { return q_; }
  [[nodiscard]] const KvShape& kv() const { return kv_; }
  /// The shape of the result and of its gradient.
  [[nodiscard]] Shape out() const { return q_.with_dim(kv_.value_dim); }
  /// The shape of the bias, if there is one.
  [[nodiscard]] const std::optional<Shape>& bias() const { return bias_; }
  [[nodiscard]] const Scoring& scoring() const { return scoring_; }
  /// Is the arithmetic in double?
  [[nodiscard]] bool is_double() const { return is_double_; }
  /// Dimensions of the q file: the results have as many.
  [[nodiscard]] std::size_t dimensions() const { return dimensions_; }
  /// Dimensions of the file of the bias.
  [[nodiscard]] std::size_t bias_dimensions() const {
    return readers_[static_cast<std::size_t>(InputArray::bias)]->dimensions();
  }

  /// Reads the tokens at `ranges`. Collective.
  template <class T>
  void read(InputArray array, View<T> shard, const TokenRanges& ranges) const;
  template <class T>
  [[nodiscard]] Tensor<T> read(InputArray array, const TokenRanges& ranges) const {
    Tensor<T> shard(shape(array).with_seq(count(ranges)));
    read<T>(array, shard.view(), ranges);
    return shard;
  }

  /// Reads some heads of a term that there is, or [0, 1) of one that broadcasts over heads. Collective.
  template <class T>
  [[nodiscard]] Tensor<T> read_heads(InputArray term, const TokenRanges& ranges,
                                     const Interval& heads) const {
    Tensor<T> shard({shape(term).batch, heads.end - heads.begin, count(ranges), shape(term).dim});
    readers_[static_cast<std::size_t>(term)]->read(shard.view(), ranges, heads);
    return shard;
  }

  /// All tokens of one head, [1, 1, S, D], in double after rounding to T: for the oracle. Collective.
  template <class T>
  [[nodiscard]] Tensor<double> whole_head(InputArray array, Index batch, Index head) const;

  /// Counts NaN and infinities, but not the -inf of a bias, in all ranks' shards of an array: one line that names the
  /// file and the first such element, or empty. Collective. \param first_head  that of the shard
  template <class T>
  [[nodiscard]] std::string non_finite(const Communicator& comm, InputArray array, View<const T> shard,
                                       const TokenRanges& ranges, Index first_head = 0) const;

 private:
  [[nodiscard]] Shape shape(InputArray array) const;
  void open(const Communicator& comm, const RunOptions& options);
  void open_bias(const Communicator& comm, const RunOptions& options);
  void prepare_scoring(const Communicator& comm, const RunOptions& options);
  void read_sinks(const Communicator& comm, const RunOptions& options);

  Shape q_;     // global
  KvShape kv_;  // likewise
  std::optional<Shape> bias_;
  Scoring scoring_;
  std::uint64_t seed_ = 1;
  bool is_double_ = false;
  std::size_t dimensions_ = 4;
  std::array<std::string, 5> names_{"q", "k", "v", "dout", ""};  // the files, or these words
  std::array<std::optional<NpyReader>, 5> readers_;              // empty with --random, except of the bias
};

/// The boundaries of documents in a file, as --documents names it. \param keys  where the last one ends
/// \throws InputError
[[nodiscard]] std::vector<Index> read_documents(const std::string& file, Index keys);

}  // namespace ring_attention
