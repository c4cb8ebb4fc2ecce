/// \file
/// `Lesson`: what every lesson's program does around its one idea: flags, text, tables, the verdict.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/command_line.hpp"
#include "cli/table.hpp"
#include "ring_attention/core/compare.hpp"
#include "ring_attention/core/counted.hpp"
#include "ring_attention/core/text.hpp"
#include "ring_attention/mpi/agreement.hpp"
#include "ring_attention/mpi/collectives.hpp"

namespace ring_attention {

/// Rank 0 alone prints: plain text, or with `--json` one JSON object and nothing else.
/// Flags that every lesson has: --help, --json, --seed, and --expect-ranks under MPI.
class Lesson {
 public:
  /// A mistake is its name, the word of `--mutant`.
  using Mistake = std::string_view;
  static constexpr Mistake no_mistake{};
  struct Wrong {
    const char *name, *description;
    Mistake mistake = name;
  };

  /// \param number  "05"
  /// \param name  "blocking_ring"
  /// \param claim  one or two sentences: what the lesson is about to show
  /// \param comm  of a lesson that runs under MPI; must outlive the lesson
  Lesson(const std::string& number, const std::string& name, const std::string& claim,
         const Communicator* comm = nullptr);
  ~Lesson();

  /// For flags of its own, before parse().
  [[nodiscard]] CommandLine& options() { return options_; }
  /// Offers `--mutant NAME`: the lesson with one known mistake in it. A reader (and a test) sees its checks fail.
  /// Pairs of name and description, before parse(). `--mutant mystery-1` and so on are the same ones, in another order:
  /// which mistake is it?
  void offer_mutants(const std::vector<std::pair<std::string, std::string>>& mutants);
  /// The same for a table of mistakes: each has a `name`, a `description` and a `mistake`.
  void offer_mistakes(const auto& mistakes) {
    std::vector<std::pair<std::string, std::string>> mutants(mistakes.size());
    std::ranges::transform(mistakes, mutants.begin(), [](const auto& wrong) {
      return std::pair<std::string, std::string>(wrong.name, wrong.description);
    });
    offer_mutants(mutants);
  }
  /// Offers `--device auto|cuda`: the lesson computes on a GPU. Before parse().
  /// \param why_none  why there is none, "this machine has no NVIDIA driver"; empty when there is one
  void needs_gpu(const std::string& why_none);
  /// Offers `--save DIR`: the lesson writes the arrays of its agreement (saved_cases.hpp). Before parse().
  void offer_save() {
    options_.option("--save", save_, "Write the arrays into DIR, for `ring-attention diagnose DIR`", "DIR");
  }
  /// Empty where nothing is to be saved.
  [[nodiscard]] const std::string& save_folder() const { return save_; }
  /// Was this mutant asked for?
  [[nodiscard]] bool mutant(const std::string& name) const { return mutant_ == name; }
  /// Which mistake of the table? Its type's first value if none.
  [[nodiscard]] auto mistake_of(const auto& mistakes) const {
    const auto asked = std::ranges::find_if(mistakes, [&](const auto& wrong) { return mutant(wrong.name); });
    return asked == mistakes.end() ? decltype(asked->mistake){} : asked->mistake;
  }
  /// Was any? Then a lesson may end after its checks: times of a wrong program say nothing.
  [[nodiscard]] bool has_mutant() const { return mutant_ != "none"; }
  /// Does the lesson measure times, with a problem of `tokens`? Not with a mutant, and not for a few tokens, whose time
  /// is that of the messages: it says so in one line.
  [[nodiscard]] bool measures(Index tokens) const;
  /// False: help was asked for and printed, or there is no GPU, under MPI on every rank, for a lesson that needs one:
  /// then it has printed `lesson 11 tensor_cores: SKIPPED | error - | why`, or a JSON object with `skipped`. The exit
  /// code is 0. Under MPI collective.
  /// \throws InputError (under MPI AgreedError) for bad flags, and for `--device cuda` where there is no GPU
  [[nodiscard]] bool parse(int argc, const char* const* argv);
  [[nodiscard]] std::uint64_t seed() const { return static_cast<std::uint64_t>(seed_); }

  /// A paragraph's title, underlined.
  void heading(const std::string& title) const;
  /// One line of text.
  void say(const std::string& line = "") const;
  /// Under MPI. With more ranks than cores a rank also waits for a core: says how many there are of each, and `what`
  /// that changes.
  void say_if_cores_are_shared(const std::string& what) const;
  /// Prints a table. With `--json` it is one of the `figures` (which the notebooks draw): rows of texts, as they are
  /// printed, the heading first.
  void print(const std::string& name, const Table& table);

  /// States what must hold and whether it does; prints the line and remembers a failure. Under MPI
  /// collective: it holds when it holds on all ranks; a failing rank's detail is printed by that rank.
  void check(const std::string& what, bool ok, const std::string& detail = "");
  /// The same for an agreement with a reference; the largest error is reported by finish().
  void check(const std::string& what, const Comparison& comparison);

  /// Prints `lesson 05 blocking_ring: PASS | error 1.2e-07 | showed`, or the JSON object, and returns the
  /// exit code: 0 when every check held (and there was one), else 1.
  [[nodiscard]] int finish(const std::string& showed);

 private:
  struct Report;  // the JSON object

  [[nodiscard]] bool has_gpu() const { return no_gpu_.empty(); }
  void skip() const;
  [[nodiscard]] bool prints_text() const;  // on this rank
  [[nodiscard]] bool prints_json() const;
  std::string number_, name_, claim_;
  const Communicator* comm_;
  CommandLine options_;
  bool json_ = false;
  std::string mutant_ = "none", save_;
  std::vector<std::pair<std::string, std::string>> mysteries_;  // mystery-1 is the first
  std::string device_ = "auto", no_gpu_;
  Index seed_ = 1;
  Index promised_ranks_ = 0;
  int checks_ = 0;
  int failed_ = 0;
  double error_ = 0;  // the largest max_error of a comparison
  std::unique_ptr<Report> report_;
};

/// The main function of a lesson without MPI: exceptions become one line and exit code 2.
int serial_main(const std::function<int()>& body);

}  // namespace ring_attention
