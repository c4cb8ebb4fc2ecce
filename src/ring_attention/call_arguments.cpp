#include "ring_attention/call_arguments.hpp"

#include <iomanip>
#include <limits>
#include <sstream>

#include "ring_attention/attention/exact/tiling.hpp"
#include "ring_attention/attention/scoring_arguments.hpp"
#include "ring_attention/core/counted.hpp"
#include "ring_attention/core/error.hpp"
#include "ring_attention/core/shape.hpp"
#include "ring_attention/parallel/heads.hpp"
#include "ring_attention/parallel/term_gradients.hpp"

namespace ring_attention {
namespace {

/// The type of an array's elements, in words.
template <class T>
const char* numbers_of() {
  if constexpr (std::is_same_v<T, Bf16>) return "bf16";
  if constexpr (std::is_same_v<T, Fp16>) return "fp16";
  return sizeof(T) == 4 ? "4-byte" : "8-byte";
}

/// What options.same_bits needs.
template <class T>
void check_same_bits(const Check& check, const RankGrid& grid, const Call<T>& call) {
  const Index tile = call.options.same_bits;
  const Shape& q = call.q.shape();
  if (tile == 0) return;
  check(call.name != std::string("forward with a function"),
        "options.same_bits does not go with a function of the caller");
  check(within(tile, 1, Tiling::largest_size), "options.same_bits is a number of tokens, 1 to 2^20, or 0");
  check(std::is_same_v<T, float>, "options.same_bits needs arrays of float in the memory of the host");
  if (call.result) require_exact_term_gradients(call.term_shapes(), q, grid);
  const Mask& mask = call.scoring.mask;
  (void)tiles_of(grid.shard(call.placement.queries), Tiling(tile, mask.documents, mask.offset));
  (void)tiles_of(grid.shard(call.placement.keys), Tiling(tile, mask.documents));
}

/// The arrays of a backward besides q, k, v and the terms.
template <class T>
void check_backward(const Check& check, const Call<T>& call) {
  const Shape& q = call.q.shape();
  check.array("result.out", call.result->out, call.out_shape());
  check.array("result.lse", call.result->lse, q.per_row());
  check.array("grad_out", call.grad_out, call.out_shape());
  if (call.grad_lse) check.array("grad_lse", *call.grad_lse, q.per_row());
}

/// Where results go.
template <class T>
void check_results(const Check& check, const Call<T>& call, const ResultViews<SumOf<T>>& to) {
  check.array("out", to.out, call.out_shape());
  check.array("lse", to.lse, call.q.shape().per_row());
}
template <class T>
void check_results(const Check& check, const Call<T>& call, const GradientViews<SumOf<T>>& to) {
  check.array("dq", to.q, call.q.shape());
  check.array("dk", to.k, call.k.shape());
  check.array("dv", to.v, call.v.shape());
  each_term(
      [&](const View<SumOf<T>>& gradient, const auto& array, const std::string& name) {
        if (array)
          check.array("d" + name, gradient, array->shape());
        else
          check(gradient.size() == 0,
                "d" + name + " is " + to_string(gradient.shape()) + ", and there is no " + name);
      },
      to.terms(), call.terms, term_names);
}

}  // namespace

template <class T>
std::string shared_arguments(const Call<T>& call) {
  const Shape &q = call.q.shape(), &k = call.k.shape();
  const auto& [queries, keys] = call.placement;
  const GpuOptions& gpu = call.options.gpu;
  std::ostringstream text;
  text << std::setprecision(std::numeric_limits<double>::max_digits10) << call.name << " of "
       << numbers_of<T>() << " numbers\nbatch " << q.batch << "\nheads " << q.heads << "\nKV heads "
       << k.heads << "\ndim " << q.dim << "\ndim of v " << call.v.shape().dim << "\nqueries " << queries.seq()
       << ' ' << name(queries.kind()) << "\npieces of the queries " << queries.pieces() << "\nkeys "
       << keys.seq() << ' ' << name(keys.kind()) << "\npieces of the keys " << keys.pieces()
       << "\nqueries in ranges of hash " << queries.hash() << "\nkeys in ranges of hash " << keys.hash()
       << "\npartition " << name(call.options.partition) << "\noptions.ulysses " << call.options.ulysses
       << "\ngradient of lse " << (call.grad_lse ? "given" : "none") << "\noptions.sum_numbers "
       << call.options.sum_numbers << "\noptions.same_bits " << call.options.same_bits
       << "\noptions.gpu.transport " << static_cast<int>(gpu.transport) << "\noptions.gpu.kernel "
       << gpu.kernel << "\noptions.gpu.backward_kernel " << gpu.backward_kernel << "\noptions.gpu.share_gpu "
       << gpu.share_gpu << "\noptions.gpu.timeout " << gpu.timeout.count() << '\n';
  return text.str() + text_of(call.scoring, call.term_shapes());
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
  const Shape &q = call.q.shape(), &k = call.k.shape(), &v = call.v.shape();
  const auto& [queries, keys] = call.placement;
  check(std::min({q.batch, q.heads, q.dim, k.heads}) > 0 && q.heads % k.heads == 0,
        "q is " + to_string(q) + " and k " + to_string(k) +
            ": batch, heads and dim are at least 1, and the KV heads divide the heads");
  check(v.dim > 0, "v is " + to_string(v) + ": it has at least one column");
  for (const Shape& rows : {q, call.out_shape()})
    check(fits(rows.with_seq(queries.seq())) && fits(rows.with_seq(keys.seq())),
          "more than 2^48 elements in all");
  check(std::max({q.batch, q.heads, q.dim, v.dim, keys.max_tokens()}) <= largest_count,
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
  check.array("v", call.v, due.with_dim(v.dim));
  each_term(
      [&](const auto& array, const std::string& name) {
        if (!array) return;
        const Shape& term = array->shape();
        check(fits(term), name + " is " + to_string(term) + ": more than 2^48 elements");
        check.array(name, *array,
                    {term.batch == 1 ? 1 : q.batch, term.heads == 1 ? 1 : q.heads, q.seq, keys.seq()});
      },
      call.terms, term_names);
  const std::string fault = fault_of(call.scoring, q.heads, std::numeric_limits<SumOf<T>>::max());
  check(fault.empty(), fault);
  if (const MaskSets* const sets = call.scoring.mask.sets.get()) {
    const std::optional<std::string> wrong = sets->fault(queries.seq(), keys.seq());
    check(!wrong, wrong.value_or(""));
  }
  if (call.result) check_backward(check, call);
  if (call.to) check_results(check, call, *call.to);
  if (call.gradients_to) check_results(check, call, *call.gradients_to);
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
