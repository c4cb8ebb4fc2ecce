// Lesson 07: the backward, derived by hand. The idea is backward_by_hand() below: tile by tile, from q, k, v and
// two numbers a row (lse and delta), without ever storing P.
#include "ring_attention/attention/backward.hpp"
#include "cli/random_problem.hpp"
#include "common/lesson.hpp"

using namespace ring_attention;

namespace {

struct Mistakes {
  bool missing_scale = false;  // dK without the scale
  bool no_delta = false;       // dS = P * dP: the softmax differentiated as if its sum were a constant
  bool tile_lse = false;       // P from the lse of the tile, not of the row
};

// ---- The idea ------------------------------------------------------------------------------------------
// One head: q, out, grad_out [S, D], k, v [S, D], lse [S]. Key j is visible to query i when j <= i.
struct HeadGradients {
  Matrix<double> q, k, v;
};
HeadGradients backward_by_hand(const MatrixMap<const double>& q, const MatrixMap<const double>& k,
                               const MatrixMap<const double>& v, const MatrixMap<const double>& out,
                               const MatrixMap<const double>& grad_out, const double* lse, double scale,
                               Index block, const Mistakes& mistakes) {
  const Index seq = q.rows();
  HeadGradients d{Matrix<double>::Zero(seq, q.cols()), Matrix<double>::Zero(seq, q.cols()),
                  Matrix<double>::Zero(seq, q.cols())};
  Matrix<double> p, ds;
  for (Index i0 = 0; i0 < seq; i0 += block) {
    const Index rows = std::min(block, seq - i0);
    std::vector<double> delta(static_cast<std::size_t>(rows));  // one number a row: dO . O
    for (Index i = 0; i < rows && !mistakes.no_delta; ++i)
      for (Index c = 0; c < out.cols(); ++c)
        delta[static_cast<std::size_t>(i)] += grad_out(i0 + i, c) * out(i0 + i, c);

    for (Index j0 = 0; j0 < i0 + rows; j0 += block) {  // tiles above the diagonal have P = 0
      const Index keys = std::min(block, seq - j0);

      p.noalias() = q.middleRows(i0, rows) * k.middleRows(j0, keys).transpose();
      p *= scale;  // forward: s = scale * q k^T
      for (Index i = 0; i < rows; ++i) {
        for (Index j = 0; j < keys; ++j)
          if (j0 + j > i0 + i) p(i, j) = negative_infinity<double>;
        const auto row_lse = mistakes.tile_lse ? std::log(p.row(i).array().exp().sum()) : lse[i0 + i];
        for (Index j = 0; j < keys; ++j) p(i, j) = rescale(p(i, j), row_lse);  // forward: P = e^{s - lse}
      }
      // forward: O = P V; so now dV = P^T dO and dP = dO V^T.
      d.v.middleRows(j0, keys).noalias() += p.transpose() * grad_out.middleRows(i0, rows);
      ds.noalias() = grad_out.middleRows(i0, rows) * v.middleRows(j0, keys).transpose();

      // forward: P = softmax(s), row by row; so now dS = P * (dP - delta).
      for (Index i = 0; i < rows; ++i)
        for (Index j = 0; j < keys; ++j) ds(i, j) = p(i, j) * (ds(i, j) - delta[static_cast<std::size_t>(i)]);
      // forward: s = scale * q k^T; so now dQ = scale * dS K and dK = scale * dS^T Q.
      d.q.middleRows(i0, rows).noalias() += scale * ds * k.middleRows(j0, keys);
      const double key_scale = mistakes.missing_scale ? 1.0 : scale;
      d.k.middleRows(j0, keys).noalias() += key_scale * ds.transpose() * q.middleRows(i0, rows);
    }
  }
  return d;
}
// --------------------------------------------------------------------------------------------------------

using Array = Tensor<double>;

/// L = sum(out * grad_out): the number whose gradients are asked for.
double loss(const Array& q, const Array& k, const Array& v, const Array& grad_out, const Scoring& scoring) {
  const Reference forward = reference_forward(q, k, v, scoring);
  return matrix(forward.out.view(), 0, 0).cwiseProduct(matrix(grad_out.view(), 0, 0)).sum();
}

/// dL/dx by central differences, one element of x at a time.
Array finite_differences(Array& x, const std::function<double()>& value) {
  constexpr double step = 1e-5;
  Array slope(x.shape());
  for (Index i = 0; i < x.size(); ++i) {
    const double here = x.data()[i];
    x.data()[i] = here + step;
    const double above = value();
    x.data()[i] = here - step;
    slope.data()[i] = (above - value()) / (2 * step);
    x.data()[i] = here;
  }
  return slope;
}

double relative_error(const Matrix<double>& got, const Array& want) {
  const auto right = matrix(want.view(), 0, 0);
  return (got - right).norm() / right.norm();
}

struct Forward {
  Array q, k, v, grad_out;
  AttentionResult<double> result;
};

Forward forward(const RandomProblem& problem) {
  const Index seq = problem.q.seq;
  Forward f{problem.queries<double>(whole(seq)),
            problem.keys<double>(),
            problem.values<double>(),
            problem.make<double>(problem.q, 3, whole(seq)),
            {}};
  f.result = blockwise_forward<double>(f.q, f.k, f.v, problem.scoring);
  return f;
}

HeadGradients by_hand(const Forward& f, double scale, Index block, const Mistakes& mistakes) {
  const auto head = [](const Array& array) { return matrix(array.view(), 0, 0); };
  return backward_by_hand(head(f.q), head(f.k), head(f.v), head(f.result.out), head(f.grad_out),
                          f.result.lse.data(), scale, block, mistakes);
}

void check_finite_differences(Lesson& lesson, Index dim, const Mistakes& mistakes) {
  const RandomProblem small{
      {1, 1, 13, dim}, {1, 1, 13, dim}, {default_scale(dim), Mask::causal()}, lesson.seed()};
  Forward f = forward(small);
  const HeadGradients got = by_hand(f, small.scoring.scale, 4, mistakes);
  const auto value = [&] { return loss(f.q, f.k, f.v, f.grad_out, small.scoring); };
  std::vector<double> errors;
  for (const auto& [name, x, gradient] :
       {std::tuple("dQ", &f.q, &got.q), std::tuple("dK", &f.k, &got.k), std::tuple("dV", &f.v, &got.v)}) {
    errors.push_back(relative_error(*gradient, finite_differences(*x, value)));
    lesson.check(std::string(name) + " agrees with finite differences of the loss", errors.back() < 1e-7,
                 "relative error " + human_error(errors.back()));
  }
  lesson.record("finite_difference_errors", errors);
}

void check_library_and_reference(Lesson& lesson, const RandomProblem& problem, Index block,
                                 const Mistakes& mistakes) {
  const Forward f = forward(problem);
  const HeadGradients got = by_hand(f, problem.scoring.scale, block, mistakes);
  const auto library = blockwise_backward<double>({f.q, f.result.out, f.result.lse, f.grad_out}, f.k, f.v,
                                                  problem.scoring, block);
  const auto same = [](const Matrix<double>& a, const Array& b) { return a == matrix(b.view(), 0, 0); };
  lesson.check("bit for bit the library's backward",
               same(got.q, library.q) && same(got.k, library.k) && same(got.v, library.v));

  const ReferenceGradients want = reference_backward(f.q, f.k, f.v, f.grad_out, problem.scoring);
  const auto agree = [&](const char* name, const Matrix<double>& gradient, const Array& reference,
                         double magnitude) {
    const View<const double> view(gradient.data(), problem.q);
    lesson.check(std::string(name) + " agrees with the dense reference",
                 compare(view, reference.view(),
                         gradient_tolerance<double>(problem.q.seq, want.max_abs_score, magnitude)));
  };
  agree("dQ", got.q, want.q, want.magnitude_q);
  agree("dK", got.k, want.k, want.magnitude_k);
  agree("dV", got.v, want.v, want.magnitude_v);
}

/// What each plausible mistake does to each gradient: some checks cannot see it.
void show_mistakes(Lesson& lesson, const RandomProblem& problem, Index block) {
  const Forward f = forward(problem);
  const ReferenceGradients want = reference_backward(f.q, f.k, f.v, f.grad_out, problem.scoring);
  Table table({"mistake", "dQ off by", "dK off by", "dV off by"});
  std::vector<std::vector<double>> rows;
  for (const auto& [name, mistakes] :
       {std::pair("none", Mistakes{}), std::pair("no scale in dK", Mistakes{.missing_scale = true}),
        std::pair("no delta", Mistakes{.no_delta = true}),
        std::pair("lse of the tile", Mistakes{.tile_lse = true})}) {
    const HeadGradients got = by_hand(f, problem.scoring.scale, block, mistakes);
    rows.push_back(
        {relative_error(got.q, want.q), relative_error(got.k, want.k), relative_error(got.v, want.v)});
    table.row({name, human_error(rows.back()[0]), human_error(rows.back()[1]), human_error(rows.back()[2])});
  }
  lesson.print(table);
  lesson.record("mistakes", rows);
}

int backward_lesson(int argc, char** argv) {
  Lesson lesson(
      "07", "backward",
      "The gradients of attention, by hand. The scores are computed again, so that the forward keeps two\n"
      "numbers a row (lse, delta) and not the S x S matrix P.");
  Index seq = 300, dim = 16, block = 64;
  lesson.options().option("--seq", seq, "Tokens S of the larger problem", {2});
  lesson.options().option("--dim", dim, "Head dim D", {2});
  lesson.options().option("--block", block, "Queries and keys of a tile");
  lesson.offer_mutants({{"missing-scale", "dK without the scale"},
                        {"no-delta", "dS = P * dP"},
                        {"tile-lse", "P from the lse of the tile alone"}});
  if (!lesson.parse(argc, argv)) return 0;
  const Mistakes mistakes{lesson.mutant("missing-scale"), lesson.mutant("no-delta"),
                          lesson.mutant("tile-lse")};
  const RandomProblem problem{
      {1, 1, seq, dim}, {1, 1, seq, dim}, {default_scale(dim), Mask::causal()}, lesson.seed()};

  lesson.heading("The failure: backward formulas that look right");
  show_mistakes(lesson, problem, std::min<Index>(block, 8));

  lesson.heading("The agreement");
  check_finite_differences(lesson, std::min<Index>(dim, 5), mistakes);
  check_library_and_reference(lesson, problem, block, mistakes);

  lesson.heading("The cost");
  const Index kept = 2 * seq * static_cast<Index>(sizeof(double));
  const Index stored = seq * seq * static_cast<Index>(sizeof(double));
  lesson.say("  kept a row beside out: lse and delta, of a head " + human_bytes(kept) + "; P would be " +
             human_bytes(stored));
  lesson.say("  products of a tile: 2 forward (q k^T, P V), 5 backward (q k^T again, dV, dP, dQ, dK)");
  lesson.record("kept_bytes", kept);
  lesson.record("p_bytes", stored);
  return lesson.finish("dQ, dK, dV by hand agree with finite differences; P is never stored");
}

}  // namespace

int main(int argc, char** argv) {
  return serial_main([&] { return backward_lesson(argc, argv); });
}
