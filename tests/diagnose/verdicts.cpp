// verdicts FILE [PART]: simulates wrong results, and appends to FILE what `diagnose` says of each trial, a line a trial.
// Trials that FILE has are skipped, so that it can be stopped and started again; PART, as in "unlisted 3 zigzag float32 1",
// chooses one job.
#include <cstdio>
#include <fstream>
#include <set>
#include <sstream>

#include "diagnose/new_mistakes.hpp"
#include "ring_attention/core/text.hpp"

using namespace ring_attention;
using namespace ring_attention::diagnose;

namespace {

struct Part {
  std::string kind;
  Job job;
  Precision precision;
  std::vector<std::string> cases;

  [[nodiscard]] std::string text() const {
    return format("%s %d %s %s %d", kind.c_str(), job.ranks, name(job.placement).c_str(),
                  name(precision).c_str(), job.ulysses);
  }
};

/// One of each kind first.
std::vector<Part> parts() {
  using enum PlacementKind;
  using enum Precision;
  const std::vector<std::string> some{"full", "causal", "gqa", "window", "sinks"};
  std::vector<Part> all{{"new", {3, zigzag}, float32, {"full", "causal", "gqa", "sinks"}},
                        {"known", {3, zigzag}, float32, {}},
                        {"unlisted", {3, contiguous}, float32, some},
                        {"known", {4, zigzag, 2}, float32, {}},
                        {"known", {3, contiguous}, bf16, {}},
                        {"unlisted", {4, striped}, bf16, some},
                        {"pairs", {3, zigzag}, float32, {"full", "causal", "gqa"}},
                        {"known", {6, zigzag, 2}, float32, {}},
                        {"known", {3, contiguous, 3}, float32, {}},
                        {"known", {2, striped}, float32, {}}};
  const auto add = [&](Part part) {
    if (std::ranges::find(all, part.text(), &Part::text) == all.end()) all.push_back(part);
  };
  for (const Precision precision : {float32, bf16})
    for (const int ranks : {3, 4, 2})
      for (const PlacementKind placement : {contiguous, striped, zigzag}) {
        add({"known", {ranks, placement}, precision, {}});
        if (ranks > 2) add({"unlisted", {ranks, placement}, precision, some});
      }
  return all;
}

/// "right 0.3" or "named 20000: 0.4, 0.5": the distance from right results and that of each explanation, in tolerances.
std::string margins(const Pass& pass) {
  std::string text = format("%.3g", pass.right_worst);
  for (const Explanation& one : pass.explanations)
    text += format(&one == &pass.explanations.front() ? ":%.3g" : ",%.3g", one.worst);
  return text;
}

class Table {
 public:
  explicit Table(const std::string& path) {
    std::ifstream in(path);
    for (std::string line; std::getline(in, line);) known_.insert(key_of(line));
    out_.open(path, std::ios::app);
  }
  [[nodiscard]] bool has(const std::string& part, const std::string& trial) const {
    return known_.contains(part + "\t" + trial);
  }
  void add(const std::string& line) { out_ << line << std::endl; }

 private:
  static std::string key_of(const std::string& line) {
    return line.substr(0, line.find('\t', line.find('\t') + 1));
  }

  std::set<std::string> known_;
  std::ofstream out_;
};

void judge(Table& table, const Part& part, const std::vector<Problem>& problems, const Trial& trial) {
  if (table.has(part.text(), trial.name)) return;
  Options options;
  options.pairs = part.kind == "pairs";
  options.lists_not_tested = false;
  if (part.kind == "unlisted")
    std::erase_if(options.mistakes, [&](const Mistake* mistake) {
      return trial.forward.has(mistake) || trial.backward.has(mistake);
    });
  const Diagnosis diagnosis = diagnose::diagnose(answers_of(trial, problems, part.precision), options);
  std::string conventions;
  for (const std::string& one : diagnosis.conventions) conventions += (conventions.empty() ? "" : "; ") + one;
  table.add(part.text() + "\t" + trial.name + "\t" +
            outcome_names.at(static_cast<std::size_t>(outcome_of(trial, diagnosis))) + "\t" +
            text_of(diagnosis.forward) + "\t" + text_of(diagnosis.backward) + "\t" +
            margins(diagnosis.forward) + "\t" + margins(diagnosis.backward) + "\t" + conventions);
}

void judge_all(Table& table, const Part& part) {
  const std::vector<Problem> problems = problems_of(part.job, part.cases);
  if (part.kind == "new")
    for (const NewMistake& wrong : new_mistakes) {
      Mistake made;
      judge(table, part, problems, trial_of(wrong, made));
    }
  else
    for (const Trial& trial :
         part.kind == "pairs" ? pairs_of(common_mistakes) : trials_of(Options().mistakes))
      judge(table, part, problems, trial);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  Table table(argv[1]);
  for (const Part& part : parts())
    if (argc < 3 || part.text() == argv[2]) judge_all(table, part);
}
