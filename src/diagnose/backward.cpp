#include <algorithm>
#include <cmath>

#include "diagnose/ring.hpp"
#include "diagnose/scores.hpp"

namespace ring_attention::diagnose {
namespace {

class BackwardRing {
 public:
  BackwardRing(const Problem& problem, const Rules& rules, const Forward& given, Precision precision)
      : problem_(problem),
        rules_(rules),
        given_(given),
        precision_(precision),
        sums_(sums_of(precision)),
        slots_(problem),
        scorer_(problem, rules, slots_, precision),
        out_(slots_, given.arrays[Array::out]),
        lse_(slots_, given.arrays[Array::lse]),
        dout_(slots_, problem.the_case.heads, problem.the_case.dim),
        dq_(dout_),
        dk_(dout_),
        dv_(dout_),
        dk_part_(dout_),
        dv_part_(dout_) {
    for (int rank = 0; rank < slots_.ranks(); ++rank)
      for (Index head = 0; head < problem.the_case.heads; ++head)
        for (Index slot = 0; slot < slots_.count(); ++slot)
          if (const Place& place = slots_.at(rank, slot); place.position < problem.the_case.tokens)
            for (Index column = 0; column < problem.the_case.dim; ++column)
              dout_.at(rank, head)(slot, column) = rules.dout(slots_, problem, place, head, column);
  }

  [[nodiscard]] Arrays run() {
    const Index tokens = problem_.the_case.tokens;
    std::vector<Steps> steps;
    for (int rank = 0; rank < slots_.ranks(); ++rank) steps.push_back(scorer_.steps(rank));
    for (std::size_t step = 0; step < steps.front().size(); ++step)
      for (int rank = 0; rank < slots_.ranks(); ++rank)
        compute(rank, static_cast<int>(step), steps[static_cast<std::size_t>(rank)][step]);
    Arrays result;
    result[Array::dq] = dq_.joined(slots_, tokens);
    result[Array::dk] = summed_over_groups(dk_);
    result[Array::dv] = summed_over_groups(dv_);
    for (const auto& edit : rules_.after_backward)
      edit(problem_, {{0, slots_.ranks()}, rules_.direction}, result);
    for (const Array array : of_backward)
      for (double& x : result[array].view().elements()) x = rounded(x, precision_);
    return result;
  }

 private:
  static void round_to(Matrix<double>& m, Precision precision) {
    if (precision != Precision::float64) m = m.unaryExpr([=](double x) { return rounded(x, precision); });
  }
  [[nodiscard]] static Matrix<double> low(Matrix<double> m, Precision precision) {
    round_to(m, precision);
    return m;
  }

  /// All heads of a rank at one step.
  void compute(int rank, int number, const Step& step) {
    const std::vector<Matrix<double>> scores = scorer_.scores(rank, step);
    const double dq_scale = scorer_.scale() * rules_.dq_factor(problem_.the_case);
    const double dk_scale = scorer_.scale() * rules_.dk_factor(problem_.the_case);
    for (Index head = 0; head < problem_.the_case.heads; ++head) {
      const Matrix<double>& dout = dout_.at(rank, head);
      const Matrix<double> p = probabilities(scores[static_cast<std::size_t>(head)], lse(rank, number, head));
      const Matrix<double> dp = product(dout, scorer_.values(step, head).transpose(), sums_);
      const Matrix<double> ds =
          low(p.cwiseProduct(dp.colwise() - delta(rank, number, head, dout)), precision_);
      rules_.add_dq(dq_.at(rank, head), dq_scale * product(ds, scorer_.keys(step, head), sums_), number);
      round_to(dq_.at(rank, head), rules_.dq_kept_in.value_or(sums_));
      hand_out(step.dk_to, number, dk_part_.at(rank, head), dk_, head,
               dk_scale * product(ds.transpose(), scorer_.queries(rank, head), sums_));
      hand_out(step.dv_to, number, dv_part_.at(rank, head), dv_, head,
               product(low(p, precision_).transpose(), dout, sums_));
    }
  }

  /// Adds what the queries of one rank give to the keys of another.
  void hand_out(int to, int number, Matrix<double>& part, Shards& sums, Index head,
                const Matrix<double>& given) {
    if (rules_.part_zeroed) part.setZero();
    part += given;
    if (to == Step::no_rank) return;
    rules_.add_dkdv(sums.at(to, head), part, number);
    round_to(sums.at(to, head), rules_.dkdv_kept_in.value_or(sums_));
  }

  [[nodiscard]] const Forward::Piece& piece(int rank, int number, Index head) const {
    const auto& steps = given_.pieces[static_cast<std::size_t>(rank)];
    const std::size_t last = steps.size() - 1;
    return steps[std::min(static_cast<std::size_t>(number), last)][static_cast<std::size_t>(head)];
  }

  [[nodiscard]] Vector<double> lse(int rank, int number, Index head) const {
    if (rules_.lse_from == Source::whole) return lse_.at(rank, head).col(0);
    return piece(rank, rules_.lse_from == Source::step ? number : 0, head).lse;
  }

  [[nodiscard]] Vector<double> delta(int rank, int number, Index head, const Matrix<double>& dout) const {
    if (rules_.delta_from == Source::none) return Vector<double>::Zero(dout.rows());
    const bool whole = rules_.delta_from == Source::whole;
    const Matrix<double>& out =
        whole ? out_.at(rank, head) : piece(rank, rules_.delta_from == Source::step ? number : 0, head).out;
    return low(dout.cwiseProduct(out).rowwise().sum(), sums_);
  }

  [[nodiscard]] Matrix<double> probabilities(const Matrix<double>& scores, const Vector<double>& lse) const {
    Matrix<double> p(scores.rows(), scores.cols());
    for (Index i = 0; i < p.rows(); ++i)
      for (Index j = 0; j < p.cols(); ++j) {
        const bool hidden = scores(i, j) == minus_infinity || lse(i) == minus_infinity;
        p(i, j) = hidden && rules_.guarded ? 0 : rounded(std::exp(scores(i, j) - lse(i)), sums_);
      }
    return p;
  }

  [[nodiscard]] Tensor<double> summed_over_groups(const Shards& of_query_heads) const {
    const Case& c = problem_.the_case;
    const Tensor<double> all = of_query_heads.joined(slots_, c.tokens);
    Tensor<double> sums(c.kv());
    for (Index head = 0; head < c.heads; ++head) {
      const Index to = rules_.dkdv_head ? rules_.dkdv_head(problem_, head) : rules_.kv_head(problem_, head);
      matrix(sums.view(), 0, to) += rules_.dkdv_of(problem_, head) * matrix(all.view(), 0, head);
    }
    return sums;
  }

  const Problem& problem_;
  const Rules& rules_;
  const Forward& given_;
  Precision precision_, sums_;
  Slots slots_;
  Scorer scorer_;
  Shards out_, lse_, dout_;
  Shards dq_, dk_, dv_;       // dk, dv: by query head
  Shards dk_part_, dv_part_;  // of one step
};

}  // namespace

Arrays simulate_backward(const Problem& problem, const Rules& rules, const Forward& given,
                         Precision precision) {
  return BackwardRing(problem, rules, given, precision).run();
}

}  // namespace ring_attention::diagnose
