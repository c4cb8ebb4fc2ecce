// Ring Attention in one file: each rank keeps its queries; keys and values travel round a ring of ranks.
//
//     mpicxx -std=c++20 -O2 -I /usr/include/eigen3 ring_attention.cpp -o ring_attention
//     mpirun -n 4 ./ring_attention
#include <mpi.h>

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;  // a row a token
using Vector = Eigen::VectorXd;                                                         // a number a token

constexpr int tokens = 101, dim = 16;  // of the whole sequence; of a query, a key or a value

// One rank of a ring of `size` ranks. Rank r owns the tokens from begin(r) to begin(r + 1) - 1.
struct Ring {
  int rank, size;
  int begin(int r) const { return tokens / size * r + std::min(r, tokens % size); }
  int count(int r) const { return begin(r + 1) - begin(r); }
  Matrix own(const Matrix& x) const { return x.middleRows(begin(rank), count(rank)); }
  int next() const { return (rank + 1) % size; }
  int prev() const { return (rank + size - 1) % size; }
  int owner(int step) const { return (rank + size - step) % size; }  // of the keys that are here at this step
};

// For each query, over the keys seen so far: m = max s, l = sum e^(s - m), o = sum e^(s - m) v.
struct State {
  Matrix o;
  Vector m, l;
};

// Adds the keys and values of one rank. Causal: a query sees the keys up to its own position: the first `seen` ones.
void merge(State& state, const Matrix& q, int first_query, const Matrix& kv, int first_key) {
  const Matrix s = q * kv.leftCols(dim).transpose() / std::sqrt(dim);
  for (int i = 0; i < int(s.rows()); ++i) {
    const int seen = std::clamp(first_query + i + 1 - first_key, 0, int(s.cols()));
    if (seen == 0) continue;
    const double m = std::max(state.m(i), s.row(i).head(seen).maxCoeff());
    const double keep = std::exp(state.m(i) - m);  // moves the sums to the new maximum; e^-inf = 0 at first
    const Eigen::RowVectorXd p = (s.row(i).head(seen).array() - m).exp();
    state.o.row(i) = keep * state.o.row(i) + p * kv.rightCols(dim).topRows(seen);
    state.l(i) = keep * state.l(i) + p.sum();
    state.m(i) = m;
  }
}

// Sends kv to the next rank and returns what the rank before sends. Even ranks send first, odd ranks receive first: if
// all sent first, each could wait for a receive that no rank has posted.
Matrix exchange(const Matrix& kv, int rows, const Ring& ring) {
  Matrix in(rows, kv.cols());
  const auto send = [&] { MPI_Send(kv.data(), int(kv.size()), MPI_DOUBLE, ring.next(), 0, MPI_COMM_WORLD); };
  if (ring.rank % 2 == 0) send();
  MPI_Recv(in.data(), int(in.size()), MPI_DOUBLE, ring.prev(), 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  if (ring.rank % 2 == 1) send();
  return in;
}

// The rows of softmax(q k^T / sqrt(dim)) v of this rank's queries, in N steps and N - 1 exchanges.
Matrix ring_attention(const Matrix& q, const Matrix& k, const Matrix& v, const Ring& ring) {
  Matrix kv(k.rows(), 2 * dim);  // they travel as one message
  kv << k, v;
  State state{Matrix::Zero(q.rows(), dim), Vector::Constant(q.rows(), -INFINITY), Vector::Zero(q.rows())};
  for (int step = 0; step < ring.size; ++step) {
    merge(state, q, ring.begin(ring.rank), kv, ring.begin(ring.owner(step)));
    if (step + 1 < ring.size) kv = exchange(kv, ring.count(ring.owner(step + 1)), ring);
  }
  return state.l.cwiseInverse().asDiagonal() * state.o;  // divided once, at the end
}

// The same on one rank, with all scores in memory.
Matrix dense_attention(const Matrix& q, const Matrix& k, const Matrix& v) {
  Matrix p = (q * k.transpose() / std::sqrt(dim)).array().exp();
  for (int i = 0; i < tokens; ++i) p.row(i).tail(tokens - 1 - i).setZero();  // causal
  return p.rowwise().sum().cwiseInverse().asDiagonal() * p * v;
}

Matrix random_matrix(unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> normal;
  return Matrix::NullaryExpr(tokens, dim, [&] { return normal(generator); });
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  Ring ring;
  MPI_Comm_rank(MPI_COMM_WORLD, &ring.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ring.size);

  const Matrix q = random_matrix(1), k = random_matrix(2), v = random_matrix(3);  // the same on all ranks
  const Matrix out = ring_attention(ring.own(q), ring.own(k), ring.own(v), ring);

  double error = (out - ring.own(dense_attention(q, k, v))).norm();
  MPI_Allreduce(MPI_IN_PLACE, &error, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  if (ring.rank == 0) std::printf("%d ranks, %d tokens: off by %.1e\n", ring.size, tokens, error);
  MPI_Finalize();
  return error < 1e-12 ? 0 : 1;
}
