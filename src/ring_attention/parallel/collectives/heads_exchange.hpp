/// \file
/// Ulysses: an all-to-all turns a slice of the sequence with all heads into the whole of it with some heads, and back.
///
/// Attention of a head needs no other head. So where a rank has whole sequences of its heads, it computes them without
/// any message: the same calls, and so the same bits, as one device. Source: Jacobs et al., DeepSpeed Ulysses,
/// arXiv 2309.14509.
///
/// The two functions are each other's adjoint: the backward moves dO with to_heads and dQ, dK, dV with to_sequence.
#pragma once

#include <numeric>

#include "ring_attention/core/error.hpp"
#include "ring_attention/core/memory.hpp"
#include "ring_attention/core/token_range.hpp"
#include "ring_attention/parallel/collectives/all_to_all.hpp"

namespace ring_attention {

namespace detail {

/// One array for each rank of the group, in one allocation: what is sent to each, or received from each.
template <class T>
class Blocks {
 public:
  Blocks(const std::vector<Shape>& shapes, const Memory& memory) {
    Index elements = 0;
    for (const Shape& shape : shapes) elements += shape.size();
    array_ = memory.array<T>({1, 1, elements, 1});
    T* next = array_.data();
    for (const Shape& shape : shapes) {
      blocks_.emplace_back(next, shape);
      next += shape.size();
    }
  }

  [[nodiscard]] const std::vector<View<T>>& views() const { return blocks_; }
  void send_and_receive(AllToAll& link, const Blocks& received) const {
    Pieces pieces;
    for (const View<T>& block : blocks_) pieces.send.push_back(std::as_bytes(block.elements()));
    for (const View<T>& block : received.blocks_)
      pieces.receive.push_back(std::as_writable_bytes(block.elements()));
    link.all_to_all(pieces);
  }

 private:
  Tensor<T> array_;
  std::vector<View<T>> blocks_;
};

/// Calls join(part of `whole`, `block`) for every head of a block that lies in `whole` from a head and a token on. The
/// tokens of a head are consecutive in both.
template <class A, class B, class Join>
void with_block(View<A> whole, Index first_head, Index first_token, View<B> block, Join join) {
  const Shape& shape = block.shape();
  const auto elements = static_cast<std::size_t>(shape.seq * shape.dim);
  for (Index batch = 0; batch < shape.batch; ++batch)
    for (Index head = 0; head < shape.heads; ++head)
      join(std::span<A>(whole.head(batch, first_head + head) + first_token * shape.dim, elements),
           std::span<B>(block.head(batch, head), elements));
}

/// How heads and tokens are divided among the ranks of a group, seen by rank `own`.
struct Division {
  const std::vector<Interval>& heads;
  const std::vector<Index>& tokens;
  std::size_t own;

  /// \throws Error unless there is an entry for every rank
  Division(const AllToAll& link, const std::vector<Interval>& all_heads, const std::vector<Index>& all_slices)
      : heads(all_heads), tokens(all_slices), own(static_cast<std::size_t>(link.rank())) {
    const auto ranks = static_cast<std::size_t>(link.size());
    require(heads.size() == ranks && tokens.size() == ranks,
            "Ulysses: heads and tokens of every rank of the group");
  }

  [[nodiscard]] std::size_t ranks() const { return heads.size(); }
  [[nodiscard]] Index heads_of(std::size_t rank) const { return heads[rank].end - heads[rank].begin; }
  [[nodiscard]] Index all_tokens() const { return std::reduce(tokens.begin(), tokens.end()); }
  [[nodiscard]] Index first_token(std::size_t rank) const {
    return std::reduce(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(rank));
  }
  /// For each rank: this rank's tokens of that rank's heads; or that rank's tokens of this rank's heads.
  [[nodiscard]] std::vector<Shape> blocks(const Shape& of, bool own_heads) const {
    std::vector<Shape> shapes;
    for (std::size_t rank = 0; rank < ranks(); ++rank)
      shapes.push_back({of.batch, heads_of(own_heads ? own : rank), tokens[own_heads ? rank : own], of.dim});
    return shapes;
  }
};

}  // namespace detail

/// From the slice of each rank with all heads to all slices with the heads of each rank.
///
/// \param link    of the U ranks that share the heads; all of them call
/// \param x       `[batch, all heads, tokens[rank], dim]`
/// \param heads   of each rank (shared_heads); a head of several ranks goes to all of them
/// \param tokens  how many tokens each rank holds (RankGrid::tokens)
/// \param memory  where x and the result are; the link moves pieces there
/// \returns `[batch, heads of this rank, sum of tokens, dim]`: the slices one after the other
///
/// Memory besides: as much as it sends and as much as it receives, its own part included. U - 1 messages a rank.
template <class T>
[[nodiscard]] Tensor<T> to_heads(AllToAll& link, View<const T> x, const std::vector<Interval>& heads,
                                 const std::vector<Index>& tokens, const Memory& memory = host_memory()) {
  const detail::Division division(link, heads, tokens);
  require(x.shape().seq == tokens[division.own], "to_heads: not the tokens of this rank");
  const detail::Blocks<T> send(division.blocks(x.shape(), false), memory),
      receive(division.blocks(x.shape(), true), memory);

  for (std::size_t rank = 0; rank < division.ranks(); ++rank)
    detail::with_block(x, heads[rank].begin, 0, send.views()[rank],
                       [&](auto from, std::span<T> to) { memory.copy(to, from); });
  send.send_and_receive(link, receive);

  Tensor<T> all = memory.array<T>(
      {x.shape().batch, division.heads_of(division.own), division.all_tokens(), x.shape().dim});
  for (std::size_t rank = 0; rank < division.ranks(); ++rank)
    detail::with_block(all.view(), 0, division.first_token(rank), receive.views()[rank],
                       [&](auto to, std::span<const T> from) { memory.copy(to, from); });
  return all;
}

/// The inverse for arrays without replicas, and the adjoint for all: what several ranks return for one head is summed,
/// in the order of the ranks.
///
/// \param y  `[batch, heads of this rank, sum of tokens, dim]`
/// \returns `[batch, all heads, tokens[rank], dim]`
template <class T>
[[nodiscard]] Tensor<T> to_sequence(AllToAll& link, View<const T> y, const std::vector<Interval>& heads,
                                    const std::vector<Index>& tokens, const Memory& memory = host_memory()) {
  const detail::Division division(link, heads, tokens);
  require(y.shape().heads == division.heads_of(division.own) && y.shape().seq == division.all_tokens(),
          "to_sequence: not the heads and tokens of this rank");
  const detail::Blocks<T> send(division.blocks(y.shape(), true), memory),
      receive(division.blocks(y.shape(), false), memory);
  for (std::size_t rank = 0; rank < division.ranks(); ++rank)
    detail::with_block(y, 0, division.first_token(rank), send.views()[rank],
                       [&](auto from, std::span<T> to) { memory.copy(to, from); });
  send.send_and_receive(link, receive);

  Tensor<T> own = memory.array<T>({y.shape().batch, heads.back().end, tokens[division.own], y.shape().dim});
  for (std::size_t rank = 0; rank < division.ranks(); ++rank) {
    const bool replica = rank > 0 && heads[rank].begin < heads[rank - 1].end;
    detail::with_block(own.view(), heads[rank].begin, 0, receive.views()[rank],
                       [&](auto sum, std::span<const T> term) {
                         if (replica)
                           memory.add(sum, term);
                         else
                           memory.copy(sum, term);
                       });
  }
  return own;
}

}  // namespace ring_attention
