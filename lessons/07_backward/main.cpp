// Lesson 07: the backward, derived by hand. backward.hpp is the idea; this program shows that it is right.
#include LESSON_IDEA

#include "common/lesson.hpp"
#include "common/saved_cases.hpp"
#include "problem.hpp"
#include "ring_attention/attention/blockwise_backward.hpp"

using namespace ring_attention;
using namespace ring_attention::lesson;

void check_finite_differences(Lesson& lesson, Index dim, const Mistakes& mistakes) {
  const RandomProblem small{
      {1, 1, 13, dim}, {1, 1, 13, dim}, {default_scale(dim), Mask::causal()}, lesson.seed()};
  Forward f = forward(small);
  const HeadGradients got = by_hand(f, small.scoring.scale, 4, mistakes);
  const auto value = [&] { return loss(f.q, f.k, f.v, f.grad_out, small.scoring); };
  for (const auto& [name, x, gradient] :
       {std::tuple("dQ", &f.q, &got.q), std::tuple("dK", &f.k, &got.k), std::tuple("dV", &f.v, &got.v)}) {
    const double error = relative_error(*gradient, finite_differences(*x, value));
    lesson.check(std::string(name) + " agrees with finite differences of the loss", error < 1e-7,
                 "relative error " + human_error(error));
  }
}

void check_library_and_reference(Lesson& lesson, const RandomProblem& problem, Index block,
                                 const Mistakes& mistakes) {
  const Forward f = forward(problem);
  const HeadGradients got = by_hand(f, problem.scoring.scale, block, mistakes);
  // A constant added to a row of scores changes nothing, so each row of dS sums to 0, and with it the rows of dK.
  const double sum = got.k.colwise().sum().norm() / got.k.norm();
  lesson.check("the rows of dK sum to 0, as each row of dS does", sum <= 1e-13, human_error(sum));

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
  const auto whole_array = [&](const Matrix<double>& x) { return View<const double>(x.data(), problem.q); };
  SavedCases(lesson.save_folder(), {PlacementKind::contiguous, static_cast<int>(problem.q.seq / block)})
      .add<double>("causal", problem, whole(problem.q.seq),
                   {{"dq", whole_array(got.q)}, {"dk", whole_array(got.k)}, {"dv", whole_array(got.v)}});
}

/// What each plausible mistake does to each gradient: some checks cannot see it.
void show_mistakes(Lesson& lesson, const RandomProblem& problem, Index block) {
  const Forward f = forward(problem);
  const ReferenceGradients want = reference_backward(f.q, f.k, f.v, f.grad_out, problem.scoring);
  Table table({"mistake", "dQ off by", "dK off by", "dV off by"});
  for (const auto& [name, mistakes] :
       {std::pair("none", Mistakes{}), std::pair("no scale in dK", Mistakes{.missing_scale = true}),
        std::pair("no delta", Mistakes{.no_delta = true}),
        std::pair("lse of the tile", Mistakes{.tile_lse = true})}) {
    const HeadGradients got = by_hand(f, problem.scoring.scale, block, mistakes);
    table.row({name, human_error(relative_error(got.q, want.q)), human_error(relative_error(got.k, want.k)),
               human_error(relative_error(got.v, want.v))});
  }
  lesson.print("mistakes", table);
}

int backward_lesson(int argc, char** argv) {
  Lesson lesson(
      "07", "backward",
      "The gradients of attention, by hand. The scores are computed again, so that the forward keeps one\n"
      "number per row (lse) and not the S x S matrix P. A second one (delta) is computed from out and dO.");
  Index seq = 300, dim = 16, block = 64;
  lesson.options().option("--seq", seq, "Tokens S of the larger problem", {2});
  lesson.options().option("--dim", dim, "Head dim D", {2});
  lesson.options().option("--tile", block, "Queries and keys of a tile");
  lesson.options().renamed("--block", "--tile");
  lesson.offer_mutants({{"missing-scale", "dK without the scale"},
                        {"no-delta", "dS = P * dP"},
                        {"tile-lse", "P from the lse of the tile alone"}});
  lesson.offer_save();
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
  lesson.say("  beside out, two numbers a row: lse and delta, of a head " + human_bytes(kept) +
             "; P would be " + human_bytes(stored));
  lesson.say("  products of a tile: 2 forward (q k^T, P V), 5 backward (q k^T again, dV, dP, dQ, dK)");
  return lesson.finish("exact dQ, dK, dV by hand; P is never stored");
}

int main(int argc, char** argv) {
  return serial_main([&] { return backward_lesson(argc, argv); });
}
