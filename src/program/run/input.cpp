#include "program/run/input.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "program/host_memory.hpp"
#include "ring_attention/attention/scoring_arguments.hpp"
#include "ring_attention/core/compare.hpp"
#include "ring_attention/core/counted.hpp"
#include "ring_attention/core/random.hpp"
#include "ring_attention/mpi/collectives.hpp"

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
  if (k != v.with_dim(k.dim))
    throw InputError(both(options.k, k, options.v, v) + "B, H and S of k and v must be the same");
  if (q.batch != k.batch) throw InputError(both(options.q, q, options.k, k) + "B must be the same");
  if (q.dim != k.dim) throw InputError(both(options.q, q, options.k, k) + "D must be the same");
  if (q.heads % k.heads != 0)
    throw InputError(both(options.q, q, options.k, k) + "the heads of k must divide the heads of q");
}

/// \throws InputError unless `file` holds double where the other arrays do
void require_type(const NpyHeader& header, bool is_double, const std::string& file) {
  if ((header.dtype == Dtype::float64) != is_double)
    throw InputError(file,
                     "is " + std::string(name(header.dtype)) + ", and the other arrays are " +
                         (is_double ? "float64" : "not"),
                     "save all arrays in one type");
}

/// NaN or infinite. A bias may be -inf: a key that is hidden.
template <class T>
bool is_wrong(InputArray array, T x) {
  return !std::isfinite(x) && !(array == InputArray::bias && x < 0);
}

/// The smallest element in the global array among this rank's wrong ones; the largest Index if none.
template <class T>
Index first_wrong(InputArray array, View<const T> shard, const Shape& global, const TokenRanges& ranges,
                  Index first_head) {
  Index first = std::numeric_limits<Index>::max();
  const std::vector<Index> where = positions(ranges);
  const Shape& shape = shard.shape();
  for (Index b = 0; b < shape.batch; ++b)
    for (Index h = 0; h < shape.heads; ++h)
      for (Index s = 0; s < shape.seq; ++s)
        for (Index d = 0; d < shape.dim; ++d)
          if (is_wrong(array, shard(b, h, s, d)))
            first = std::min(first, ((b * global.heads + first_head + h) * global.seq +
                                     where[static_cast<std::size_t>(s)]) *
                                            global.dim +
                                        d);
  return first;
}

}  // namespace

RunInput::RunInput(const Communicator& comm, const RunOptions& options) {
  if (options.is_random()) {
    q_ = options.random_shape();
    kv_ = q_;
    if (options.kv_heads != 0) kv_.heads = options.kv_heads;
    if (options.value_dim != 0) kv_.value_dim = options.value_dim;
    seed_ = static_cast<std::uint64_t>(options.seed);
  } else {
    open(comm, options);
  }
  open_bias(comm, options);
  require_least_memory(comm, q_, kv_, options);
  prepare_scoring(comm, options);
  read_sinks(comm, options);
}

void RunInput::open(const Communicator& comm, const RunOptions& options) {
  names_ = {options.q, options.k, options.v, options.dout, ""};
  for (std::size_t i = 0; i < names_.size(); ++i)
    if (!names_[i].empty()) readers_[i].emplace(comm, names_[i]);
  const NpyReader& q = *readers_[0];
  agree(comm, [&] {
    for (std::size_t i = 1; i < names_.size(); ++i)
      if (readers_[i]) require_same_kind(q.header(), readers_[i]->header(), options, names_[i]);
    require_shapes(q.shape(), readers_[1]->shape(), readers_[2]->shape(), options);
    const Shape result = q.shape().with_dim(readers_[2]->shape().dim);
    if (readers_[3] && readers_[3]->shape() != result)
      throw InputError(options.dout + " is " + to_string(readers_[3]->shape()) + " and " + options.q +
                       " is " + to_string(q.shape()) + " as [B, H, S, D]: the gradient of the result is " +
                       (result == q.shape() ? "like q" : to_string(result) + ", with the D of v"));
  });
  q_ = q.shape();
  kv_ = {readers_[1]->shape(), readers_[2]->shape().dim};
  is_double_ = q.header().dtype == Dtype::float64;
  dimensions_ = q.dimensions();
}

void RunInput::open_bias(const Communicator& comm, const RunOptions& options) {
  if (options.bias.empty()) return;
  names_.back() = options.bias;
  const NpyReader& bias = readers_.back().emplace(comm, options.bias);
  agree(comm, [&] {
    require_type(bias.header(), is_double_, options.bias);
    const Shape& shape = bias.shape();
    const Shape due{shape.batch == 1 ? 1 : q_.batch, shape.heads == 1 ? 1 : q_.heads, q_.seq, kv_.seq};
    if (shape != due)
      throw InputError(options.bias,
                       "is " + to_string(shape) + " as [B, H, Sq, Sk] where " +
                           to_string(Shape{q_.batch, q_.heads, q_.seq, kv_.seq}) + " is due",
                       "B and H may also be 1");
  });
  bias_ = bias.shape();
}

std::vector<Index> read_documents(const std::string& file, Index keys) {
  std::vector<Index> boundaries = read_npy_integers(file);
  const bool good = !boundaries.empty() && boundaries.front() == 0 && boundaries.back() == keys &&
                    std::is_sorted(boundaries.begin(), boundaries.end());
  if (!good)
    throw InputError(file,
                     "the boundaries of documents start with 0, never decrease, and end with " +
                         std::to_string(keys) + ", the number of keys",
                     "save them with np.cumsum of the lengths, 0 in front");
  return boundaries;
}

void RunInput::prepare_scoring(const Communicator& comm, const RunOptions& options) {
  scoring_ = options.scoring;
  scoring_.scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(q_.dim)));
  scoring_.softcap = options.softcap.value_or(0);
  agree(comm, [&] {
    const std::string fault = fault_of_numbers(
        scoring_, is_double_ ? std::numeric_limits<double>::max() : std::numeric_limits<float>::max());
    if (!fault.empty()) throw InputError("--" + fault);
  });
  scoring_.mask = band_of(options.causal, options.window);
  scoring_.mask.offset = options.q_offset.value_or(kv_.seq - q_.seq);
  if (options.alibi) scoring_.alibi_slopes = alibi_slopes(q_.heads);
  scoring_.dropout.seed = static_cast<std::uint64_t>(options.dropout_seed);
  scoring_.mask.sets = mask_sets_of(comm, options.mask, q_.seq, kv_.seq);
  if (options.documents.empty()) return;
  std::vector<Index> boundaries;
  agree(comm, [&] {
    if (comm.rank() == 0) boundaries = read_documents(options.documents, kv_.seq);
  });
  broadcast(comm, boundaries);
  scoring_.mask.documents = std::make_shared<const Documents>(boundaries);
}

void RunInput::read_sinks(const Communicator& comm, const RunOptions& options) {
  if (options.sink.empty()) return;
  agree(comm, [&] {
    if (comm.rank() != 0) return;
    const NpyHeader header = read_npy_header(options.sink);
    check_floating_point(header, options.sink);
    require_type(header, is_double_, options.sink);
    if (header.elements() != q_.heads)
      throw InputError(
          options.sink,
          "holds " + counted(header.elements(), "number") + " for " + counted(q_.heads, "query head"),
          "save one logit per head");
    const std::vector<double> sinks = read_npy_numbers(options.sink);
    if (!std::ranges::all_of(sinks, [](double x) { return x < std::numeric_limits<double>::infinity(); }))
      throw InputError(options.sink, "has a NaN or +inf", "a sink is a finite number, or -inf for none");
    scoring_.sinks = sinks;
  });
  broadcast(comm, scoring_.sinks);
}

Shape RunInput::shape(InputArray array) const {
  switch (array) {
    case InputArray::q: return q_;
    case InputArray::k: return static_cast<const Shape&>(kv_);
    case InputArray::v: return kv_.values();
    case InputArray::grad_out: return out();
    case InputArray::bias: return *bias_;
  }
  return {};
}

template <class T>
void RunInput::read(InputArray array, View<T> shard, const TokenRanges& ranges) const {
  const auto which = static_cast<std::size_t>(array);
  if (readers_[which])
    readers_[which]->read(shard, ranges);
  else
    fill_random(shard, {seed_, which}, shape(array), ranges);
}

template <class T>
Tensor<double> RunInput::whole_head(InputArray array, Index batch, Index head) const {
  const auto which = static_cast<std::size_t>(array);
  const Shape whole_array = shape(array);
  Tensor<T> one({1, 1, whole_array.seq, whole_array.dim});
  if (readers_[which]) {
    readers_[which]->read_head(batch, head, one.view());
  } else {
    for (Index s = 0; s < whole_array.seq; ++s)
      for (Index d = 0; d < whole_array.dim; ++d)
        one.view()(0, 0, s, d) =
            static_cast<T>(random_element({seed_, which}, whole_array, batch, head, s, d));
  }
  return converted<double>(one);
}

template <class T>
std::string RunInput::non_finite(const Communicator& comm, InputArray array, View<const T> shard,
                                 const TokenRanges& ranges, Index first_head) const {
  const auto wrong = std::ranges::count_if(shard.elements(), [=](T x) { return is_wrong(array, x); });
  const Index found = sum_over_ranks(comm, wrong);
  const Index first = min_over_ranks(comm, first_wrong(array, shard, shape(array), ranges, first_head));
  if (found == 0) return {};
  return names_[static_cast<std::size_t>(array)] + ": " + counted(found, "element") +
         (found == 1 ? " is" : " are") + " NaN or infinite, the first at " +
         element_name(shape(array), first) +
         (array == InputArray::bias ? " of [B, H, Sq, Sk]" : " of [B, H, S, D]");
}

#define RING_ATTENTION_INSTANTIATE(T)                                                       \
  template void RunInput::read(InputArray, View<T>, const TokenRanges&) const;              \
  template Tensor<double> RunInput::whole_head<T>(InputArray, Index, Index) const;          \
  template std::string RunInput::non_finite(const Communicator&, InputArray, View<const T>, \
                                            const TokenRanges&, Index) const;
RING_ATTENTION_INSTANTIATE(float)
RING_ATTENTION_INSTANTIATE(double)
#undef RING_ATTENTION_INSTANTIATE

}  // namespace ring_attention
