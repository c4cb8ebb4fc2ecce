// A fixture for tests of files under MPI: a directory that all ranks know, shards with known values, and
// placements of tokens.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "ring_attention/core/tensor.hpp"
#include "ring_attention/core/token_range.hpp"
#include "support/agreed_error.hpp"
#include "support/temporary_directory.hpp"

namespace ring_attention::test {

/// A communicator, and a directory that rank 0 makes and all ranks know.
class RanksAndFiles : public testing::Test {
 public:
  ~RanksAndFiles() override { wait(); }

 protected:
  RanksAndFiles() : comm_(MPI_COMM_WORLD) {
    std::string name(4096, '\0');
    if (comm_.rank() == 0) {
      directory_ = std::make_unique<TemporaryDirectory>();
      directory_->path().copy(name.data(), name.size() - 1);
    }
    MPI_Bcast(name.data(), static_cast<int>(name.size()), MPI_CHAR, 0, comm_.handle());
    path_ = name.substr(0, name.find('\0'));
  }

  void wait() const { MPI_Barrier(comm_.handle()); }
  [[nodiscard]] std::string at(const std::string& file) const { return path_ + "/" + file; }

  /// Rank 0 writes these bytes; all ranks can read them afterwards.
  void put(const std::string& file, const std::string& bytes) const {
    if (comm_.rank() == 0) std::ofstream(at(file), std::ios::binary) << bytes;
    wait();
  }
  [[nodiscard]] std::string contents(const std::string& file) const {
    std::ifstream in(at(file), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  const Communicator comm_;
  std::unique_ptr<TemporaryDirectory> directory_;
  std::string path_;
};

/// A shard's value at a place of the whole array; exact in float and, below 2048, in half.
inline double value_at(const Shape& shape, Index b, Index h, Index s, Index d) {
  return static_cast<double>(((b * shape.heads + h) * shape.seq + s) * shape.dim + d);
}

template <class T>
Tensor<T> shard_of(const Shape& shape, const TokenRanges& ranges) {
  Tensor<T> shard(shape.with_seq(count(ranges)));
  const std::vector<Index> where = positions(ranges);
  for (Index b = 0; b < shape.batch; ++b)
    for (Index h = 0; h < shape.heads; ++h)
      for (Index s = 0; s < shard.shape().seq; ++s)
        for (Index d = 0; d < shape.dim; ++d)
          shard.view()(b, h, s, d) =
              static_cast<T>(value_at(shape, b, h, where[static_cast<std::size_t>(s)], d));
  return shard;
}

template <class T>
bool same(const Tensor<T>& a, const Tensor<T>& b) {
  return a.shape() == b.shape() && std::equal(a.data(), a.data() + a.size(), b.data());
}

using Placement = TokenRanges (*)(Index seq, int rank, int ranks);

inline TokenRanges contiguous(Index seq, int rank, int ranks) {
  const Index begin = seq * rank / ranks;
  const Index end = seq * (rank + 1) / ranks;
  return begin < end ? TokenRanges{{begin, 1, end - begin}} : TokenRanges{};
}
inline TokenRanges striped(Index seq, int rank, int ranks) {
  return rank < seq ? TokenRanges{{rank, ranks, (seq - rank + ranks - 1) / ranks}} : TokenRanges{};
}
inline TokenRanges zigzag(Index seq, int rank, int ranks) {
  TokenRanges ranges = contiguous(seq, rank, 2 * ranks);
  for (const TokenRange& range : contiguous(seq, 2 * ranks - 1 - rank, 2 * ranks)) ranges.push_back(range);
  return ranges;
}
/// All ranks except one have no token.
inline TokenRanges one_rank(Index seq, int rank, int ranks) {
  return rank == ranks / 2 ? whole(seq) : TokenRanges{};
}
/// Odd tokens striped, even tokens in blocks of one: several strided ranges, out of order, of different numbers.
inline TokenRanges shuffled(Index seq, int rank, int ranks) {
  TokenRanges ranges;
  for (Index first : {1, 0}) {
    const Index begin = Index{2} * rank + first, stride = Index{2} * ranks;
    const Index tokens = begin < seq ? (seq - begin + stride - 1) / stride : 0;
    if (tokens > 0) ranges.push_back({begin, stride, tokens});
  }
  return ranges;
}
inline constexpr Placement placements[] = {contiguous, striped, zigzag, one_rank, shuffled};

}  // namespace ring_attention::test
