// Lesson 08, NUMBERS.md: what partial results rounded at each hop cost. All ranks are threads of this process.
#include "common/lesson.hpp"
#include "errors.hpp"
#include "training.hpp"

using namespace ring_attention;
using namespace ring_attention::lesson_08;

namespace {

constexpr std::array rank_counts{1, 4, 8, 16, 32, 64};
constexpr Index most_equal = 16;  // ranks of the tables that have one number of them

/// The slope of log error over log N from 4 to 64 ranks, by least squares.
double exponent(const std::vector<double>& errors) {
  double x_y = 0, x_x = 0;
  const double middle = std::log2(rank_counts[3]);
  for (std::size_t i = 1; i < rank_counts.size(); ++i) {
    const double x = std::log2(rank_counts[i]) - middle;
    x_y += x * std::log2(errors[i]);
    x_x += x * x;
  }
  return x_y / x_x;
}

/// One row of the table of growth: the errors for each number of ranks.
std::vector<double> growth_of(const Oracle& oracle, const Row& row) {
  std::vector<double> errors;
  for (const int ranks : rank_counts) errors.push_back(errors_of(oracle, ranks, row.kept)[row.shown]);
  return errors;
}

void check_growth(Lesson& lesson, const std::vector<std::vector<double>>& errors,
                  const std::vector<std::vector<double>>& predictions, const std::vector<double>& exponents) {
  const auto within = [&](std::size_t row, double least, double most) {
    return exponents[row] >= least && exponents[row] <= most;
  };
  lesson.check("rounding the parts of a step does not grow with N", within(1, -0.1, 0.1));
  lesson.check("rounding what all steps so far gave grows as the root of N",
               within(2, 0.35, 0.6) && within(4, 0.35, 0.6) && within(5, 0.35, 0.6) && within(6, 0.35, 0.6));
  lesson.check("so does rounding lse", within(3, 0.35, 0.6));
  bool as_predicted = true;
  for (std::size_t row = 1; row < errors.size(); ++row)
    for (std::size_t n = 1; n < rank_counts.size(); ++n) {
      const double ratio = errors[row][n] / predictions[row][n];
      as_predicted = as_predicted && ratio >= 0.67 && ratio <= 1.5;
    }
  lesson.check("from four ranks on each error is 0.67 to 1.5 of its prediction", as_predicted);
  const auto at_64 = [&](std::size_t row) { return errors[row].back(); };
  lesson.check("at 64 ranks: nothing < parts < out < (o, m, l) < lse",
               at_64(0) < 1e-5 && at_64(0) < at_64(1) && at_64(1) < at_64(2) && at_64(2) < at_64(4) &&
                   at_64(4) < at_64(3));
}

void show_growth(Lesson& lesson, const Oracle& oracle) {
  lesson.heading("Growth with the ranks, " + counted(oracle.problem.q.seq, "token"));
  Table table({"kept in bf16", "of", "N = 1", "4", "8", "16", "32", "64", "exponent", "predicted"});
  std::vector<std::vector<double>> errors, predictions;
  std::vector<double> exponents;
  const double lse = oracle.typical_lse();
  std::vector<Row> all = rows(bf16);
  all.insert(all.begin(), nothing);
  for (const Row& row : all) {
    errors.push_back(growth_of(oracle, row));
    exponents.push_back(exponent(errors.back()));
    predictions.emplace_back();
    for (const int ranks : rank_counts) predictions.back().push_back(predicted(row, ranks, lse));
    std::vector<std::string> cells{row.name, quantity_names[row.shown]};
    for (const double error : errors.back()) cells.push_back(human_error(error));
    cells.push_back(format("%.2f", exponents.back()));
    cells.push_back(predictions.back().back() > 0 ? human_error(predictions.back().back()) : "-");
    table.row(cells);
  }
  lesson.print("growth", table);
  check_growth(lesson, errors, predictions, exponents);
}

void show_effects(Lesson& lesson, const Oracle& oracle) {
  lesson.heading("What each of them damages, on 16 ranks");
  Table table({"kept", "type", "out", "lse", "dQ", "dK", "dV"});
  std::vector<std::vector<double>> errors;
  for (const NumberType& type : {bf16, fp16})
    for (const Row& row : rows(type)) {
      const Errors of_row = errors_of(oracle, most_equal, row.kept);
      errors.emplace_back(of_row.begin(), of_row.end());
      std::vector<std::string> cells{row.name, type.name};
      for (const double error : of_row) cells.push_back(human_error(error));
      table.row(cells);
    }
  lesson.print("effects", table);
  const std::size_t types = rows(bf16).size();
  bool eighth = true;
  for (std::size_t row = 0; row < types; ++row) {
    const auto shown = static_cast<std::size_t>(rows(bf16)[row].shown);
    const double ratio = errors[row][shown] / errors[types + row][shown];
    eighth = eighth && ratio >= 5 && ratio <= 12;
  }
  lesson.check("fp16 has about an eighth of the errors of bf16", eighth);
  const std::vector<double>& lse = errors[2];
  lesson.check("a rounded lse damages dQ, dK and dV alike",
               std::ranges::all_of(std::span(lse).subspan(of_dq), [&](double e) {
                 return e >= 0.7 * lse[of_lse] && e <= 1.4 * lse[of_lse];
               }));
}

void show_lengths(Lesson& lesson) {
  lesson.heading("Growth with the length, on 16 ranks, bf16");
  Table table({"S", "lse", "out of out", "lse of lse", "dK of dK,dV"});
  std::vector<std::vector<double>> errors;
  for (const Index seq : {256, 512, 1024, 2048}) {
    const Oracle oracle(seq, lesson.seed());
    const std::vector<Row> all = rows(bf16);
    errors.push_back({oracle.typical_lse()});
    std::vector<std::string> cells{std::to_string(seq), format("%.2f", oracle.typical_lse())};
    for (const std::size_t row : {1U, 2U, 5U}) {
      errors.back().push_back(errors_of(oracle, most_equal, all[row].kept)[all[row].shown]);
      cells.push_back(human_error(errors.back().back()));
    }
    table.row(cells);
  }
  lesson.print("lengths", table);
  const auto flat = [&](std::size_t column) {
    return errors.back()[column] <= 1.3 * errors.front()[column] &&
           errors.front()[column] <= 1.3 * errors.back()[column];
  };
  lesson.check("out and dK do not depend on the length", flat(1) && flat(3));
  lesson.check("that of lse is as predicted from the spacing of bf16 at lse",
               std::ranges::all_of(errors, [](const auto& e) {
                 const double ratio = e[2] / predicted_lse(bf16, most_equal, e[0]);
                 return ratio >= 0.67 && ratio <= 1.5;
               }));
}

void show_cancellation(Lesson& lesson) {
  lesson.heading("Keys with a common part, which no softmax sees: dQ when the parts of a step are bf16");
  Table table({"mean of the keys", "N = 1", "4", "8", "16", "32", "64"});
  Row parts = rows(bf16).front();
  parts.shown = of_dq;
  std::vector<std::vector<double>> errors;
  for (const double mean : {0.0, 2.0, 8.0}) {
    errors.push_back(growth_of(Oracle(512, lesson.seed(), mean), parts));
    std::vector<std::string> cells{format("%.0f", mean)};
    for (const double error : errors.back()) cells.push_back(human_error(error));
    table.row(cells);
  }
  lesson.print("key_means", table);
  const std::vector<double>&none = errors.front(), &large = errors.back();
  lesson.check("a mean of 0: no growth", none.back() <= 1.2 * none.front());
  bool larger = true;
  for (std::size_t n = 0; n < none.size(); ++n) larger = larger && large[n] > 5 * none[n];
  lesson.check("a mean of 8: more than 5 times the error, growing",
               larger && large.back() > 1.2 * large.front());
}

/// The rows of the training: bf16, and all in fp16.
std::vector<Row> trained_rows() {
  std::vector<Row> all = rows(bf16);
  all.insert(all.begin(), nothing);
  all.push_back(rows(fp16).back());
  return all;
}

void show_gradients(Lesson& lesson, const Training& training, const std::vector<Row>& all) {
  lesson.heading("The gradient of all weights, after " + counted(training.steps, "step") + " in float");
  std::vector<Kept> kinds;
  for (const Row& row : all) kinds.push_back(row.kept);
  const std::vector<double> errors = gradient_errors(training, kinds, lesson.seed());
  Table table({"kept", "type", "off by"});
  for (std::size_t row = 1; row < all.size(); ++row)
    table.row({all[row].name, all[row].kept.type.name, human_error(errors[row])});
  lesson.print("gradients", table);
  lesson.check("each is off by less than 2 %, and by nothing in float",
               errors[0] == 0 && std::ranges::all_of(errors, [](double e) { return e < 0.02; }));
}

/// The losses of one row, one a seed.
std::vector<double> losses_of(std::uint64_t first_seed, const Training& training, const Row& row,
                              Index seeds) {
  std::vector<double> losses;
  for (Index seed = 0; seed < seeds; ++seed)
    losses.push_back(trained_loss(training, row.kept, first_seed + static_cast<std::uint64_t>(seed)));
  return losses;
}

void show_losses(Lesson& lesson, const Training& training, const std::vector<Row>& all, Index seeds) {
  lesson.heading("The loss after that training, of " + counted(seeds, "seed"));
  Table table({"kept", "type", "mean", "least", "largest", "farthest from float, same seed"});
  std::vector<std::vector<double>> losses;
  double farthest = 0;
  for (const Row& row : all) {
    losses.push_back(losses_of(lesson.seed(), training, row, seeds));
    const std::vector<double>&of_row = losses.back(), &in_float = losses.front();
    double from_float = 0;
    for (std::size_t s = 0; s < of_row.size(); ++s)
      from_float = std::max(from_float, std::abs(of_row[s] - in_float[s]));
    farthest = std::max(farthest, from_float);
    const double mean = std::accumulate(of_row.begin(), of_row.end(), 0.0) / static_cast<double>(seeds);
    table.row({row.name, losses.size() == 1 ? "float" : row.kept.type.name, format("%.4f", mean),
               format("%.4f", std::ranges::min(of_row)), format("%.4f", std::ranges::max(of_row)),
               format("%.4f", from_float)});
  }
  lesson.print("losses", table);
  const double spread = std::ranges::max(losses[0]) - std::ranges::min(losses[0]);
  lesson.check("no rounding moves the loss as far as another seed does", seeds == 1 || farthest < spread,
               format("%.4f against %.4f", farthest, spread));
}

int numbers_lesson(int argc, char** argv) {
  Lesson lesson(
      "08", "numbers",
      "A ring may keep what it passes on, or what it has so far, in the type of q. This program rounds one\n"
      "of them at a time, and shows how the errors grow with ranks and length, and what they do to a\n"
      "training.");
  Index seq = 512, seeds = 0;
  lesson.options().option("--seq", seq, "Tokens S of the first two tables");
  lesson.options().option("--seeds", seeds,
                          "Trainings for each kind of rounding; 0: only the error of the gradient", {0, 64});
  if (!lesson.parse(argc, argv)) return 0;
  const Oracle oracle(seq, lesson.seed());
  show_growth(lesson, oracle);
  show_effects(lesson, oracle);
  show_lengths(lesson);
  show_cancellation(lesson);
  const Training training{.steps = seeds > 0 ? 200 : 20};
  show_gradients(lesson, training, trained_rows());
  if (seeds > 0) show_losses(lesson, training, trained_rows(), seeds);
  return lesson.finish(
      "a sum kept in bf16 loses digits as the root of N; parts in bf16, added in float, do not");
}

}  // namespace

int main(int argc, char** argv) {
  return serial_main([&] { return numbers_lesson(argc, argv); });
}
