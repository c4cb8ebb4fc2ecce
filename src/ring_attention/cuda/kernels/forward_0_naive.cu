/// \file
/// Kernel 0: the plain formula, with all scores S of a head in device memory.
///
///     s  = scale q k^T + bias     one thread per entry     reads 2 rows of D for 2 D operations
///     p  = e^(s - max s)          one thread per row       reads its row of S twice
///     o  = p v                    one thread per entry     reads a row of P and a column of V
///
/// A dense bias is added after the first step, and the factors of a dropout are multiplied after the second, each by a
/// kernel of its own.
///
/// Every operand is read from device memory each time it is used, so memory limits the speed, not arithmetic. S of one
/// head is scratch memory: [queries][keys] floats. Runs on every device.
#include "ring_attention/cuda/kernels/common/pair_terms.cuh"
#include "ring_attention/cuda/keys.cuh"
#include "ring_attention/cuda/launch.cuh"
#include "ring_attention/cuda/math.cuh"
#include "ring_attention/cuda/types.cuh"

namespace ring_attention::cuda {
namespace {

constexpr int threads = 128;

/// One head of a task.
struct Head {
  ForwardTask task;
  int batch_head, kv_head;  // the query head and the KV head, numbered over the whole batch

  template <class T>
  __device__ const T* of_queries(const void* array, int query) const {
    return static_cast<const T*>(array) + (static_cast<Index>(batch_head) * task.queries + query) * task.dim;
  }
  template <class T>
  __device__ const T* of_keys(const void* array, int key) const {
    return static_cast<const T*>(array) + (static_cast<Index>(kv_head) * task.keys + key) * task.dim;
  }
  [[nodiscard]] __device__ Index row(Index query) const {
    return static_cast<Index>(batch_head) * task.queries + query;
  }
};

__device__ Index own_index() { return static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x; }

/// s[i][j] in units of log 2; -inf where the key is masked. \param cap  the softcap, in the units of the scores, or 0
template <class T>
__global__ void compute_scores(Head head, float cap, float* s) {
  const ForwardTask& task = head.task;
  const Index entry = own_index();
  if (entry >= static_cast<Index>(task.queries) * task.keys) return;
  const int query = static_cast<int>(entry / task.keys), key = static_cast<int>(entry % task.keys);
  float score = -infinity;
  for (int r = 0; r < task.ranges; ++r) {
    const KeyInterval visible = visible_keys(task.range[r], task.visible[query]);
    if (key < visible.begin || key >= visible.end) continue;
    const T *q = head.of_queries<T>(task.q, query), *k = head.of_keys<T>(task.k, key);
    score = 0;
    for (int c = 0; c < task.dim; ++c) score += widened(q[c]) * widened(k[c]);
    score = capped_product(score * (task.scale * log2_e), log2_e * cap);
    if (task.alibi_slope != nullptr)
      score += alibi(log2_e * task.alibi_slope[head.batch_head % task.heads], task.range[r], key,
                     task.position[query]);
  }
  s[entry] = score;
}

/// s[i][j] += bias, where the key is visible.
__global__ void add_bias(Head head, PairTerms pairs, float* s) {
  const ForwardTask& task = head.task;
  const Index entry = own_index();
  if (entry >= static_cast<Index>(task.queries) * task.keys) return;
  const int query = static_cast<int>(entry / task.keys), key = static_cast<int>(entry % task.keys);
  for (int r = 0; r < task.ranges; ++r) {
    const KeyInterval visible = visible_keys(task.range[r], task.visible[query]);
    if (key < visible.begin || key >= visible.end) continue;
    s[entry] = PairRow(task, pairs, head.batch_head, query, task.range[r]).biased(s[entry], key);
  }
}

/// Multiplies p[i][j] by the factor of the dropout.
__global__ void drop(Head head, PairTerms pairs, float* p) {
  const ForwardTask& task = head.task;
  const Index entry = own_index();
  if (entry >= static_cast<Index>(task.queries) * task.keys) return;
  const int query = static_cast<int>(entry / task.keys), key = static_cast<int>(entry % task.keys);
  for (int r = 0; r < task.ranges; ++r) {
    const KeyRange& range = task.range[r];
    if (key < range.first || key >= range.first + range.tokens.count) continue;
    p[entry] = PairRow(task, pairs, head.batch_head, query, range).dropped(p[entry], key);
  }
}

/// Updates m and l, replaces s by p, and sets a[query] to the factor by which the earlier sums are multiplied.
__global__ void softmax_rows(Head head, float* s, float* a) {
  const ForwardTask& task = head.task;
  const Index query = own_index();
  if (query >= task.queries) return;
  float* row = s + query * task.keys;
  const float before = task.fresh ? -infinity : task.m[head.row(query)];
  float m = before;
  for (int j = 0; j < task.keys; ++j) m = fmaxf(m, row[j]);
  const float from = rescale_from(m);
  float l = 0;
  for (int j = 0; j < task.keys; ++j) {
    row[j] = exp2f(row[j] - from);
    l += row[j];
  }
  a[query] = exp2f(before - from);
  task.m[head.row(query)] = m;
  task.l[head.row(query)] = task.fresh ? l : a[query] * task.l[head.row(query)] + l;
}

/// o[i][c] = a[i] o[i][c] + sum_j p[i][j] v[j][c].
template <class T>
__global__ void add_values(Head head, const float* p, const float* a) {
  const ForwardTask& task = head.task;
  const Index entry = own_index();
  if (entry >= static_cast<Index>(task.queries) * task.dim) return;
  const int query = static_cast<int>(entry / task.dim), c = static_cast<int>(entry % task.dim);
  float sum = 0;
  for (int j = 0; j < task.keys; ++j)
    sum += p[static_cast<Index>(query) * task.keys + j] * widened(head.of_keys<T>(task.v, j)[c]);
  float& o = task.o[head.row(query) * task.dim + c];
  o = task.fresh ? sum : a[query] * o + sum;
}

/// At least `count` threads.
LaunchConfig threads_for(Index count) { return {blocks_of(count, Index{threads}), threads}; }

template <class Task>
void attend(const Task& task, Type type, const DeviceTraits&, StreamHandle stream) {
  const Scratch<float> s(static_cast<Index>(task.queries) * task.keys, stream), a(task.queries, stream);
  const int group = task.heads / task.kv_heads;
  float cap = 0;
  if constexpr (has_pairs<Task>) cap = task.pairs.softcap;
  with_type(type, [&]<class T>(T) {
    for (int batch_head = 0; batch_head < task.batch * task.heads; ++batch_head) {
      const Head head{task, batch_head, batch_head / group};
      const Index queries = task.queries, pairs = queries * task.keys;
      launch(compute_scores<T>, threads_for(pairs), stream, head, cap, s.data());
      if constexpr (has_pairs<Task>) launch(add_bias, threads_for(pairs), stream, head, task.pairs, s.data());
      launch(softmax_rows, threads_for(queries), stream, head, s.data(), a.data());
      if constexpr (has_pairs<Task>) launch(drop, threads_for(pairs), stream, head, task.pairs, s.data());
      launch(add_values<T>, threads_for(queries * task.dim), stream, head, s.data(), a.data());
    }
  });
  if (task.last)
    finish_rows(task.o, task.m, task.l, Index{task.batch} * task.heads * task.queries, task.dim, stream);
}

bool takes(const DeviceTraits&, Type, int dim) { return dim >= 1; }

}  // namespace

extern const ForwardKernel forward_0_naive{0,
                                           "naive",
                                           "fp32, all scores in memory, one thread per entry",
                                           true,
                                           takes,
                                           attend<ForwardTask>,
                                           attend<WithPairs<ForwardTask>>};

}  // namespace ring_attention::cuda
