#include "diagnose/mistakes/mistake.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <sstream>

#include "diagnose/mistakes/edits.hpp"
#include "diagnose/mistakes/text.hpp"
#include "ring_attention/core/error.hpp"

namespace ring_attention::diagnose {
namespace {

std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells;
  std::istringstream text(line + '\t');
  for (std::string cell; std::getline(text, cell, '\t');) cells.push_back(cell);
  return cells;
}

Phase phase_named(const std::string& word) {
  if (word == "forward") return Phase::forward;
  if (word == "backward") return Phase::backward;
  require(word == "both", "mistakes.tsv: no phase is called " + word);
  return Phase::both;
}

/// "forward", "both", "forward float"
Mistake mistake_of(const std::string& line) {
  const std::vector<std::string> cells = cells_of(line);
  require(cells.size() == 7, "mistakes.tsv: a line has 7 cells: " + line);
  std::string phase = cells[1];
  const bool in_float = phase.ends_with(" float");
  if (in_float) phase.resize(phase.size() - 6);
  return {cells[0], phase_named(phase), in_float, cells[2], cells[3], cells[4], cells[5], cells[6]};
}

/// Does a rank of a ring of three compute with other K,V than those of the owner to whom their gradients go?
bool moves_content(const Edit& edit) {
  Rules rules;
  edit.make(rules);
  const Turn turn{{0, 3}, 1};
  Steps steps{{0, 0, 0, 0, 0}, {2, 2, 2, 2, 2}, {1, 1, 1, 1, 1}};
  for (const auto& change : rules.schedule) change(turn, steps);
  return std::ranges::any_of(steps, [](const Step& step) {
    return step.dk_to != Step::no_rank && step.dk_to == step.positions &&
           (step.k != step.dk_to || step.v != step.dv_to);
  });
}

bool loses_digits(const Edit& edit) {
  Rules rules;
  edit.make(rules);
  return rules.out_kept_in || rules.lse_kept_in || rules.dq_kept_in || rules.dkdv_kept_in;
}

std::map<std::string, Edit> all_edits() {
  std::map<std::string, Edit> edits;
  for (const auto& of_file :
       {schedule_edits(), mask_edits(), score_edits(), merge_edits(), softmax_edits(), backward_edits()})
    for (const Edit& edit : of_file)
      require(edits.emplace(edit.id, edit).second, "two edits are called " + edit.id);
  return edits;
}

std::vector<Mistake> read() {
  std::map<std::string, Edit> edits = all_edits();
  std::vector<Mistake> mistakes;
  std::istringstream lines{std::string(mistakes_text)};
  std::string line;
  std::getline(lines, line);  // the heading
  while (std::getline(lines, line)) {
    if (line.find("\tunseen\t") != std::string::npos) continue;  // no array of a case shows it
    Mistake mistake = mistake_of(line);
    const auto edit = edits.find(mistake.id);
    require(edit != edits.end(), "mistakes.tsv: there is no edit for " + mistake.id);
    mistake.edit = edit->second.make;
    mistake.directed = edit->second.directed;
    mistake.moves_content = moves_content(edit->second);
    mistake.loses_digits = loses_digits(edit->second);
    edits.erase(edit);
    mistakes.push_back(mistake);
  }
  require(edits.empty(), "mistakes.tsv has no line for " + (edits.empty() ? "" : edits.begin()->first));
  return mistakes;
}

}  // namespace

const std::vector<Mistake>& all_mistakes() {
  static const std::vector<Mistake> mistakes = read();
  return mistakes;
}

const Mistake& mistake_named(const std::string& id) {
  const auto found = std::ranges::find(all_mistakes(), id, &Mistake::id);
  require(found != all_mistakes().end(), "no mistake is called " + id);
  return *found;
}

}  // namespace ring_attention::diagnose
