#include "ring_attention/call_arguments.hpp"

#include <cmath>
#include <iomanip>
#include <limits>
#include <sstream>

#include "ring_attention/attention/exact/tiling.hpp"
#include "ring_attention/core/error.hpp"
#include "ring_attention/core/shape.hpp"
#include "ring_attention/core/text.hpp"
#include "ring_attention/parallel/context_parallel.hpp"
#include "ring_attention/parallel/heads.hpp"

namespace ring_attention {
namespace {

/// The type of an array's elements, in words.
template <class T>
const char* numbers_of() {
  if constexpr (std::is_same_v<T, Bf16>) return "bf16";
  if constexpr (std::is_same_v<T, Fp16>) return "fp16";
  return sizeof(T) == 4 ? "4-byte" : "8-byte";
}

std::string words_of_bias(const std::optional<Shape>& bias) {
  if (!bias) return "no bias";
  return "a bias of batch " + std::to_string(bias->batch) + ", heads " + std::to_string(bias->heads) +
         ", keys " + std::to_string(bias->dim);
}

void check_scoring(const Check& check, const Scoring& scoring, Index heads, double largest) {
  const auto& [scale, mask, slopes, sinks, dropout] = scoring;
  const auto finite = [&](double x) { return std::abs(x) <= largest; };  // false for NaN, too
  check(finite(scale), format("scale is %g: it must be finite", scale));
  check((Mask{mask.left, mask.right}.valid()),
        "mask.left and mask.right are numbers of keys: from 0 to 2^53, or Mask::unlimited");
  check(mask.valid(), "mask.offset is beyond 2^53");
  check(slopes.empty() || std::ssize(slopes) == heads,
        std::to_string(slopes.size()) + " ALiBi slopes for " + counted(heads, "head"));
  check(std::ranges::all_of(slopes, finite), "an ALiBi slope is not finite");
  check(sinks.empty() || std::ssize(sinks) == heads,
        counted(std::ssize(sinks), "sink") + " for " + counted(heads, "head"));
  check(std::ranges::all_of(sinks, [&](double x) { return x <= largest; }), "a sink is NaN or +inf");
  check(dropout.valid(),
        format("dropout.probability is %g: it must be from 0 to below 1", dropout.probability));
  for (const Index number : {dropout.layer, dropout.first_batch, dropout.first_head})
    check(within(number, 0, largest_count),
          "dropout.layer, first_batch and first_head are from 0 to 2^31 - 1");
}

/// What options.same_bits needs.
template <class T>
void check_same_bits(const Check& check, const RankGrid& grid, const Call<T>& call) {
  const Index tile = call.options.same_bits;
  const Shape& q = call.q.shape();
  if (tile == 0) return;
  check(within(tile, 1, Tiling::largest_size), "options.same_bits is a number of tokens, 1 to 2^20, or 0");
  check(std::is_same_v<T, float>, "options.same_bits needs arrays of float in the memory of the host");
  if (call.name == std::string("backward")) require_exact_bias_gradient(call.bias_shape(), q, grid);
  const Mask& mask = call.scoring.mask;
  (void)tiles_of(grid.shard(call.placement.queries), Tiling(tile, mask.documents, mask.offset));
  (void)tiles_of(grid.shard(call.placement.keys), Tiling(tile, mask.documents));
}

}  // namespace

template <class T>
std::string shared_arguments(const Call<T>& call) {
  const Shape &q = call.q.shape(), &k = call.k.shape();
  const auto& [queries, keys] = call.placement;
  const auto& [scale, mask, slopes, sinks, dropout] = call.scoring;
  const GpuOptions& gpu = call.options.gpu;
  std::ostringstream text;
  text << std::setprecision(std::numeric_limits<double>::max_digits10) << call.name << " of "
       << numbers_of<T>() << " numbers\nbatch " << q.batch << "\nheads " << q.heads << "\nKV heads "
       << k.heads << "\ndim " << q.dim << "\nqueries " << queries.seq() << ' ' << name(queries.kind())
       << "\npieces of the queries " << queries.pieces() << "\nkeys " << keys.seq() << ' '
       << name(keys.kind()) << "\npieces of the keys " << keys.pieces() << "\nscale " << scale
       << "\nmask.left " << mask.left << "\nmask.right " << mask.right << "\nmask.offset " << mask.offset
       << "\ntransport " << (call.options.transport == TransportKind::overlapped ? "overlapped" : "odd-even")
       << "\npartition " << name(call.options.partition) << "\noptions.ulysses " << call.options.ulysses
       << "\noptions.same_bits " << call.options.same_bits << "\noptions.gpu.transport "
       << static_cast<int>(gpu.transport) << "\noptions.gpu.kernel " << gpu.kernel
       << "\noptions.gpu.backward_kernel " << gpu.backward_kernel << "\noptions.gpu.share_gpu "
       << gpu.share_gpu << "\noptions.gpu.timeout " << gpu.timeout.count() << '\n'
       << words_of_bias(call.bias_shape()) << "\ndropout " << dropout.probability << "\ndropout.seed "
       << dropout.seed << "\ndropout.step " << dropout.step << "\ndropout.layer " << dropout.layer
       << "\ndropout.first_batch " << dropout.first_batch << "\ndropout.first_head " << dropout.first_head
       << '\n'
       << slopes.size() << " ALiBi slopes\n";
  for (const double slope : slopes) text << "ALiBi slope " << slope << '\n';
  text << sinks.size() << " sinks\n";
  for (const double sink : sinks) text << "a sink " << sink << '\n';
  text << (mask.documents ? "documents\n" : "no documents\n");
  for (Index begin = 0, end = 0; mask.documents && mask.documents->of(begin) >= 0; begin = end) {
    end = mask.documents->end(mask.documents->of(begin));  // empty documents change nothing: `of` skips them
    text << "a document [" << begin << ", " << end << ")\n";
  }
  return text.str() + "no further document\n";
}

void require_same_arguments(int rank, const std::string& mine, const std::string& of_rank_0) {
  std::istringstream here(mine), there(of_rank_0);
  for (std::string line, due; std::getline(here, line) && std::getline(there, due);)
    if (line != due)
      throw InputError("the ranks disagree: rank 0 has " + due + ", rank " + std::to_string(rank) + " has " +
                       line);
}

template <class T>
void check_arguments(const Check& check, int rank, int ranks, const Call<T>& call) {
  const Shape &q = call.q.shape(), &k = call.k.shape();
  const auto& [queries, keys] = call.placement;
  check(std::min({q.batch, q.heads, q.dim, k.heads}) > 0 && q.heads % k.heads == 0,
        "q is " + to_string(q) + " and k " + to_string(k) +
            ": batch, heads and dim are at least 1, and the KV heads divide the heads");
  check(fits(q.with_seq(queries.seq())) && fits(q.with_seq(keys.seq())), "more than 2^48 elements in all");
  check(std::max({q.batch, q.heads, q.dim, keys.max_tokens()}) <= largest_count,
        "batch, heads, dim, and the keys of a rank, are at most 2^31 - 1");
  const bool hybrid = call.options.partition == Partition::hybrid;
  check(hybrid || call.options.ulysses == 1, "options.ulysses is for Partition::hybrid only");
  const RankGrid grid = call.grid(rank, ranks);
  (void)HeadShare(q.heads, k.heads, grid.ulysses.size);
  check(queries.ranks() == grid.ring.size && keys.ranks() == grid.ring.size,
        "the placement is not for the " + counted(grid.ring.size, "rank") +
            (grid.ulysses.size == 1 ? " of the communicator" : " of the ring"));
  const Shape due{q.batch, k.heads, count(grid.slice(keys)), q.dim};
  check.array("q", call.q, q.with_seq(count(grid.slice(queries))));
  check.array("k", call.k, due);
  check.array("v", call.v, due);
  if (call.bias) {
    const Shape& bias = call.bias->shape();
    check(fits(bias), "bias is " + to_string(bias) + ": more than 2^48 elements");
    check.array("bias", *call.bias,
                {bias.batch == 1 ? 1 : q.batch, bias.heads == 1 ? 1 : q.heads, q.seq, keys.seq()});
  }
  check_scoring(check, call.scoring, q.heads, std::numeric_limits<SumOf<T>>::max());
  check_same_bits(check, grid, call);
}

template std::string shared_arguments(const Call<float>&);
template std::string shared_arguments(const Call<double>&);
template std::string shared_arguments(const Call<Bf16>&);
template std::string shared_arguments(const Call<Fp16>&);
template void check_arguments(const Check&, int, int, const Call<float>&);
template void check_arguments(const Check&, int, int, const Call<double>&);
template void check_arguments(const Check&, int, int, const Call<Bf16>&);
template void check_arguments(const Check&, int, int, const Call<Fp16>&);

}  // namespace ring_attention
