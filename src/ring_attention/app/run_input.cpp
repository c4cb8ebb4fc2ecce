#include "ring_attention/app/run_input.hpp"

#include <limits>

namespace ring_attention {
namespace {

void require_same_kind(const NpyHeader& q, const NpyHeader& other, const RunOptions& options,
                       const std::string& file) {
  if (q.extents.size() != other.extents.size())
    throw InputError(options.q + " has " + std::to_string(q.extents.size()) + " dimensions but " + file +
                     " has " + std::to_string(other.extents.size()) +
                     ": save q, k and v with the same number");
  if ((q.dtype == Dtype::float64) != (other.dtype == Dtype::float64))
    throw InputError(options.q + " is " + std::string(name(q.dtype)) + " but " + file + " is " +
                     std::string(name(other.dtype)) + ": save q, k and v in one type");
}

void require_shapes(const Shape& q, const Shape& k, const Shape& v, const RunOptions& options) {
  const auto both = [](const std::string& a, const Shape& shape_a, const std::string& b,
                       const Shape& shape_b) {
    return a + " is " + to_string(shape_a) + " and " + b + " is " + to_string(shape_b) + " as [B, H, S, D]: ";
  };
  if (k != v) throw InputError(both(options.k, k, options.v, v) + "k and v must have the same shape");
  if (q.batch != k.batch) throw InputError(both(options.q, q, options.k, k) + "B must be the same");
  if (q.dim != k.dim) throw InputError(both(options.q, q, options.k, k) + "D must be the same");
  if (q.heads % k.heads != 0)
    throw InputError(both(options.q, q, options.k, k) + "the heads of k must divide the heads of q");
}

/// The smallest element in the global array among this rank's non-finite ones; the largest Index if none.
template <class T>
Index first_global(View<const T> shard, const Shape& global, const Runs& runs) {
  Index first = std::numeric_limits<Index>::max();
  const std::vector<Index> where = positions(runs);
  const Shape& shape = shard.shape();
  for (Index b = 0; b < shape.batch; ++b)
    for (Index h = 0; h < shape.heads; ++h)
      for (Index s = 0; s < shape.seq; ++s)
        for (Index d = 0; d < shape.dim; ++d)
          if (!std::isfinite(shard(b, h, s, d)))
            first = std::min(
                first,
                ((b * global.heads + h) * global.seq + where[static_cast<std::size_t>(s)]) * global.dim + d);
  return first;
}

}  // namespace

RunInput::RunInput(const Communicator& comm, const RunOptions& options) {
  if (options.is_random()) {
    problem_.q = {options.random[0], options.random[1], options.random[2], options.random[3]};
    problem_.kv = problem_.q;
    if (options.kv_heads != 0) problem_.kv.heads = options.kv_heads;
    problem_.seed = static_cast<std::uint64_t>(options.seed);
  } else {
    open(comm, options);
  }
  problem_.scoring.scale = options.scale.value_or(default_scale(problem_.q.dim));
  if (options.causal)
    problem_.scoring.mask = Mask::causal(options.q_offset.value_or(problem_.kv.seq - problem_.q.seq));
}

void RunInput::open(const Communicator& comm, const RunOptions& options) {
  names_ = {options.q, options.k, options.v};
  q_.emplace(comm, options.q);
  k_.emplace(comm, options.k);
  v_.emplace(comm, options.v);
  agree(comm, [&] {
    require_same_kind(q_->header(), k_->header(), options, options.k);
    require_same_kind(q_->header(), v_->header(), options, options.v);
    require_shapes(q_->shape(), k_->shape(), v_->shape(), options);
  });
  problem_.q = q_->shape();
  problem_.kv = k_->shape();
  is_double_ = q_->header().dtype == Dtype::float64;
  dimensions_ = q_->dimensions();
}

template <class T>
Tensor<T> RunInput::queries(const Placement& placement, int rank) {
  const Runs runs = placement.runs(rank);
  if (!q_) return problem_.queries<T>(runs);
  Tensor<T> shard(problem_.q.with_seq(count(runs)));
  q_->read(shard.view(), runs);
  return shard;
}

template <class T>
KvParcel<T> RunInput::parcel(const Placement& placement, int rank) {
  if (!k_) return problem_.parcel<T>(placement, rank);
  KvParcel<T> parcel(problem_.kv, placement, rank);
  k_->read(parcel.k(), placement.runs(rank));
  v_->read(parcel.v(), placement.runs(rank));
  return parcel;
}

template <class T>
Tensor<double> RunInput::whole_head(bool values, Index batch, Index head) {
  Tensor<T> one({1, 1, problem_.kv.seq, problem_.kv.dim});
  if (k_) {
    (values ? *v_ : *k_).read_head(batch, head, one.view());
  } else {
    for (Index s = 0; s < problem_.kv.seq; ++s)
      for (Index d = 0; d < problem_.kv.dim; ++d)
        one.view()(0, 0, s, d) =
            static_cast<T>(random_element(problem_.fill(values ? 2 : 1), problem_.kv, batch, head, s, d));
  }
  return converted<double>(one);
}

template <class T>
std::vector<std::string> RunInput::non_finite(const Communicator& comm, const Placement& queries,
                                              const Placement& keys, const Tensor<T>& q,
                                              KvParcel<T>& kv) const {
  std::vector<std::string> lines;
  const auto look = [&](const std::string& file, View<const T> shard, const Shape& global, const Runs& runs) {
    const Index found = sum_over_ranks(comm, count_non_finite(shard).count);
    const Index first = min_over_ranks(comm, first_global(shard, global, runs));
    if (found > 0)
      lines.push_back(file + ": " + std::to_string(found) + " element(s) are NaN or infinite, the first at " +
                      element_name(global, first) + " of [B, H, S, D]");
  };
  look(names_[0], q.view(), problem_.q, queries.runs(comm.rank()));
  look(names_[1], kv.k(), problem_.kv, keys.runs(comm.rank()));
  look(names_[2], kv.v(), problem_.kv, keys.runs(comm.rank()));
  return lines;
}

#define RING_ATTENTION_INSTANTIATE(T)                                  \
  template Tensor<T> RunInput::queries(const Placement&, int);         \
  template KvParcel<T> RunInput::parcel(const Placement&, int);        \
  template Tensor<double> RunInput::whole_head<T>(bool, Index, Index); \
  template std::vector<std::string> RunInput::non_finite(              \
      const Communicator&, const Placement&, const Placement&, const Tensor<T>&, KvParcel<T>&) const;
RING_ATTENTION_INSTANTIATE(float)
RING_ATTENTION_INSTANTIATE(double)
#undef RING_ATTENTION_INSTANTIATE

}  // namespace ring_attention
