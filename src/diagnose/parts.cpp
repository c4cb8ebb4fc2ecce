#include "diagnose/parts.hpp"

#include <Eigen/QR>
#include <cmath>

#include "diagnose/scores.hpp"

namespace ring_attention::diagnose {
namespace {

/// What a right ring computes at one step alone: [step] arrays whose sum is right.
std::vector<Arrays> by_step(const Evidence& one) {
  const Problem& problem = *one.problem;
  const Slots slots(problem);
  const Shards lse(slots, one.right->arrays[Array::lse]);
  std::vector<Arrays> steps;
  for (int step = 0; step < slots.ranks(); ++step) {
    Rules rules;
    rules.add_dq = rules.add_dkdv = [step](Matrix<double>& sum, const Matrix<double>& part, int number) {
      if (number == step) sum += part;
    };
    Arrays arrays = simulate_backward(problem, rules, *one.right);
    Shards out(slots, problem.the_case.heads, problem.the_case.dim);
    for (int rank = 0; rank < slots.ranks(); ++rank)
      for (Index head = 0; head < problem.the_case.heads; ++head) {
        const Forward::Piece& piece =
            one.right->pieces[static_cast<std::size_t>(rank)][static_cast<std::size_t>(step)]
                             [static_cast<std::size_t>(head)];
        for (Index slot = 0; slot < slots.count(); ++slot)
          if (piece.lse(slot) != minus_infinity)
            out.at(rank, head).row(slot) =
                std::exp(piece.lse(slot) - lse.at(rank, head)(slot, 0)) * piece.out.row(slot);
      }
    arrays[Array::out] = out.joined(slots, problem.the_case.tokens);
    steps.push_back(std::move(arrays));
  }
  return steps;
}

/// The rows of a rank of the ring, all heads one after the other.
Eigen::VectorXd rows_of(const Tensor<double>& array, const std::vector<Index>& tokens) {
  const Shape& shape = array.shape();
  Eigen::VectorXd rows(shape.heads * std::ssize(tokens) * shape.dim);
  Index at = 0;
  for (Index head = 0; head < shape.heads; ++head)
    for (const Index token : tokens)
      for (const double x : array.view().row(0, head, token)) rows(at++) = x;
  return rows;
}

}  // namespace

Parts parts_of(const Evidence& one, Array array) {
  const Job& job = one.problem->job;
  const int ring = job.ring();
  const Placement placement(job.placement, one.problem->the_case.tokens, ring);
  const std::vector<Arrays> steps = by_step(one);
  const bool of_queries = array == Array::out || array == Array::dq;
  Parts parts{Eigen::MatrixXd::Constant(ring, ring, std::nan("")), 0};
  double rest = 0, all = 0;
  for (int rank = 0; rank < ring; ++rank) {
    const std::vector<Index> tokens = positions(placement.ranges(rank));
    const Eigen::VectorXd got = rows_of((*one.got)[array], tokens);
    Eigen::MatrixXd basis(got.size(), ring);
    for (int step = 0; step < ring; ++step)
      basis.col(step) = rows_of(steps[static_cast<std::size_t>(step)][array], tokens);
    const Eigen::VectorXd factors = basis.colPivHouseholderQr().solve(got);
    for (int step = 0; step < ring; ++step) {
      // At a step a rank's queries meet the keys of the owner; its keys meet the queries of the rank that many hops on.
      const int other = Ring{rank, ring}.owner(of_queries ? step : -step);
      if (basis.col(step).norm() > 0) parts.factors(rank, other) = factors(step);
    }
    rest += (basis * factors - got).squaredNorm();
    all += got.squaredNorm();
  }
  parts.left = all > 0 ? std::sqrt(rest / all) : 1;
  return parts;
}

}  // namespace ring_attention::diagnose
