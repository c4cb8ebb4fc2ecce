// Random cases for the emulated kernels: several shards of keys, any ranges, any mask, against the reference in double.
// The emulator's device memory is host memory.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <deque>
#include <functional>
#include <limits>
#include <numbers>
#include <vector>

#include "ring_attention/attention/backward.hpp"
#include "ring_attention/cuda/choice.hpp"
#include "ring_attention/cuda/error.hpp"
#include "support/problem.hpp"

namespace ring_attention::test {

using cuda::Type;

inline const char* name(Type type) {
  return type == Type::fp32 ? "fp32" : type == Type::bf16 ? "bf16" : "fp16";
}

// A case, its keys in shards of at most two ranges each, and the positions of the rank's queries.
struct KernelCase {
  Case what;
  Type type = Type::bf16;
  std::vector<TokenRanges> shards;
  TokenRanges rows;
};

// All keys, in one to three shards: contiguous, striped, or zigzag with two ranges each.
inline std::vector<TokenRanges> random_shards(Dice& dice, Index keys) {
  if (dice.one_in(3)) return {whole(keys)};
  const Index shards = dice.between(2, 3);
  std::vector<TokenRanges> all;
  const bool striped = dice.one_in(2), zigzag = dice.one_in(2);
  const auto cut = [&](Index i) { return keys * i / (2 * shards); };
  for (Index i = 0; i < shards; ++i) {
    TokenRanges ranges;
    const auto add = [&](Index begin, Index stride, Index count) {
      if (count > 0) ranges.push_back({begin, stride, count});
    };
    if (striped) {
      add(i, shards, (keys - i + shards - 1) / shards);
    } else if (zigzag) {
      add(cut(i), 1, cut(i + 1) - cut(i));
      const Index mirror = 2 * shards - 1 - i;
      add(cut(mirror), 1, cut(mirror + 1) - cut(mirror));
    } else {
      add(cut(2 * i), 1, cut(2 * i + 2) - cut(2 * i));
    }
    if (!ranges.empty()) all.push_back(ranges);
  }
  return all;
}

inline KernelCase random_kernel_case(Dice& dice, Index index, std::initializer_list<Index> dims,
                                     std::initializer_list<Type> types) {
  KernelCase a;
  a.what = random_case(dice, index, 3);
  a.what.keys = dice.one_in(4) ? dice.between(1, 40) : dice.between(40, 300);
  const bool is_long = a.what.keys > 150 && !dice.one_in(6);  // three tiles of keys: mostly with few heads
  a.what.batch = !is_long && dice.one_in(4) ? 2 : 1;
  a.what.kv_heads = is_long ? 1 : dice.between(1, 2);
  a.what.group = dice.of<Index>({1, 1, 2, 3});
  a.what.dim = dice.of(dims);
  a.what.queries = dice.one_in(2) ? a.what.keys : dice.between(1, 200);
  Scoring& scoring = a.what.scoring;
  if (!dice.one_in(4)) scoring.scale = 1 / std::sqrt(static_cast<double>(a.what.dim));
  if (dice.one_in(12)) scoring.scale = -scoring.scale;
  if (scoring.mask.offset != 0 || dice.one_in(2)) scoring.mask.offset = a.what.keys - a.what.queries;
  if (scoring.mask.left != Mask::unlimited) scoring.mask.left = dice.between(0, a.what.keys);
  if (scoring.mask.documents) scoring.mask.documents = random_documents(dice, a.what.keys);
  if (scoring.has_alibi()) scoring.alibi_slopes = alibi_slopes(a.what.q().heads);
  a.type = dice.of(types);
  a.shards = random_shards(dice, a.what.keys);
  const Index stride = dice.one_in(3) ? dice.between(1, 3) : 1;
  a.rows = whole(a.what.queries);
  if (stride > 1) a.rows = {{0, stride, (a.what.queries + stride - 1) / stride}};
  return a;
}

inline std::string to_string(const KernelCase& a) {
  std::string text =
      to_string(a.what) + ", " + name(a.type) + ", " + std::to_string(count(a.rows)) + " rows, shards";
  for (const TokenRanges& ranges : a.shards) {
    text += " [";
    for (const TokenRange& range : ranges)
      text += " " + std::to_string(range.begin) + "+" + std::to_string(range.stride) + "*" +
              std::to_string(range.count);
    text += " ]";
  }
  return text;
}

// A number rounded to the type.
inline float rounded(float x, Type type) {
  switch (type) {
    case Type::bf16: return __bfloat162float(__float2bfloat16_rn(x));
    case Type::fp16: return __half2float(__float2half_rn(x));
    default: return x;
  }
}

// The problem with q, k and v rounded to the type, so that kernel and reference have the same inputs.
inline Problem<float> rounded_problem(const KernelCase& a) {
  auto [q, k, v] = random_inputs<float>(a.what);
  for (Tensor<float>* tensor : {&q, &k, &v})
    for (float& x : tensor->view().elements()) x = rounded(x, a.type);
  return make_problem(a.what, std::move(q), std::move(k), std::move(v));
}

// make(a), kept for the other kernels and schedules of the case: the reference takes longer than a kernel.
template <class Made>
const Made& made_once(const KernelCase& a, Made (*make)(const KernelCase&)) {
  static std::deque<std::pair<std::string, Made>> latest;
  const std::string key = to_string(a);
  for (const auto& [of, made] : latest)
    if (of == key) return made;
  if (latest.size() == 40) latest.pop_front();
  return latest.emplace_back(key, make(a)).second;
}

// An array for a kernel, with margins of NaN on both sides that must not change.
class Memory {
 public:
  static constexpr std::size_t margin = 4096;

  explicit Memory(std::size_t bytes) : bytes_(bytes), all_(bytes + 2 * margin + 1024, std::byte{0xff}) {
    const auto start = reinterpret_cast<std::uintptr_t>(all_.data());
    first_ = all_.data() + margin + (1024 - (start + margin) % 1024) % 1024;
  }
  // The tensor as numbers of `type`.
  Memory(const Tensor<float>& tensor, Type type) : Memory(size(tensor, type)) {
    const float* from = tensor.data();
    for (Index i = 0; i < tensor.size(); ++i) switch (type) {
        case Type::fp32: as<float>()[i] = from[i]; break;
        case Type::bf16: as<__nv_bfloat16>()[i] = __float2bfloat16_rn(from[i]); break;
        case Type::fp16: as<__half>()[i] = __float2half_rn(from[i]); break;
      }
  }
  template <class T>
  explicit Memory(const std::vector<T>& values) : Memory(values.size() * sizeof(T)) {
    std::copy(values.begin(), values.end(), as<T>());
  }

  template <class T>
  T* as() {
    return reinterpret_cast<T*>(first_);
  }
  [[nodiscard]] bool overrun() const {
    const auto poisoned = [](const std::byte* from, const std::byte* to) {
      return std::all_of(from, to, [](std::byte x) { return x == std::byte{0xff}; });
    };
    return !poisoned(all_.data(), first_) || !poisoned(first_ + bytes_, all_.data() + all_.size());
  }

 private:
  static std::size_t size(const Tensor<float>& tensor, Type type) {
    return static_cast<std::size_t>(tensor.size()) * (type == Type::fp32 ? 4 : 2);
  }
  std::size_t bytes_;
  std::vector<std::byte> all_;
  std::byte* first_;
};

// The part of a task that both directions share, and its memory.
struct TaskMemory {
  Memory q, visible, position, slopes;
  cuda::AttentionTask task{};

  TaskMemory(const KernelCase& a, const Problem<float>& problem)
      : q(rows_of(problem.q, a.rows), a.type),
        visible(intervals(a)),
        position(places(a)),
        slopes(std::vector<float>(a.what.scoring.alibi_slopes.begin(), a.what.scoring.alibi_slopes.end())) {
    task.batch = static_cast<int>(a.what.batch);
    task.heads = static_cast<int>(a.what.q().heads);
    task.kv_heads = static_cast<int>(a.what.kv_heads);
    task.dim = static_cast<int>(a.what.dim);
    task.queries = static_cast<int>(count(a.rows));
    task.scale = static_cast<float>(a.what.scoring.scale);
    task.q = q.as<void>();
    task.visible = visible.as<Interval>();
    task.position = position.as<Index>();
    task.alibi_slope = a.what.scoring.has_alibi() ? slopes.as<float>() : nullptr;
  }
  void set_keys(const TokenRanges& shard, Memory& k, Memory& v) {
    task.ranges = 0;
    Index first = 0;
    for (const TokenRange& range : shard) {
      task.range[task.ranges++] = {range, first};
      first += range.count;
    }
    task.keys = static_cast<int>(first);
    task.k = k.as<void>();
    task.v = v.as<void>();
  }

 private:
  static std::vector<Interval> intervals(const KernelCase& a) {
    std::vector<Interval> all;
    for (const Index row : positions(a.rows)) all.push_back(a.what.scoring.mask.visible(row));
    return all;
  }
  static std::vector<Index> places(const KernelCase& a) {
    std::vector<Index> all = positions(a.rows);
    for (Index& place : all) place += a.what.scoring.mask.offset;
    return all;
  }
};

using RunForward = std::function<void(const cuda::ForwardTask&, Type)>;

// Runs the forward over all shards, and compares (o, m, l) with the reference.
inline testing::AssertionResult forward_agrees(const KernelCase& a, const RunForward& run) {
  const Problem<float>& problem = made_once(a, rounded_problem);
  TaskMemory memory(a, problem);
  const Shape rows = a.what.q().with_seq(count(a.rows));
  const auto floats = [](Index n) { return static_cast<std::size_t>(n) * sizeof(float); };
  Memory o(floats(rows.size())), m(floats(rows.per_row().size())), l(floats(rows.per_row().size()));
  bool fresh = true;
  for (const TokenRanges& shard : a.shards) {
    Memory k(rows_of(problem.k, shard), a.type), v(rows_of(problem.v, shard), a.type);
    memory.set_keys(shard, k, v);
    run({memory.task, std::exchange(fresh, false), o.as<float>(), m.as<float>(), l.as<float>()}, a.type);
    cuda::check(cudaStreamSynchronize(nullptr));
    for (const Memory* array : {&o, &m, &l, &k, &v, &memory.q})
      if (array->overrun()) return testing::AssertionFailure() << "written out of bounds, " << to_string(a);
  }
  Partial<float> partial{Tensor<float>(rows), Tensor<float>(rows.per_row()), Tensor<float>(rows.per_row())};
  std::copy_n(o.as<float>(), rows.size(), partial.o.data());
  std::copy_n(l.as<float>(), rows.per_row().size(), partial.l.data());
  for (Index i = 0; i < rows.per_row().size(); ++i)
    partial.m.data()[i] = static_cast<float>(m.as<float>()[i] * std::numbers::ln2);
  const AttentionResult<float> got = finish(std::move(partial));

  const Reference& want = problem.want;
  Tolerance tolerance = attention_tolerance<float>(a.what.keys, want.max_abs_score, want.max_abs_value);
  const Tensor<double> lse = rows_of(want.lse, a.rows);
  const Comparison statistic = compare(got.lse, lse, tolerance, {.allow_negative_infinity = true});
  if (!statistic.ok)
    return testing::AssertionFailure() << "lse " << describe(statistic) << "\n  " << to_string(a);
  tolerance.absolute += 0.75 * cuda::unit_roundoff(a.type) * want.max_abs_value;  // of p
  const Comparison out =
      compare(got.out, rows_of(want.out, a.rows), tolerance, {.expect_zero = all_fully_masked(lse)});
  if (!out.ok) return testing::AssertionFailure() << "out " << describe(out) << "\n  " << to_string(a);
  return testing::AssertionSuccess();
}

}  // namespace ring_attention::test
