#include "judge.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <regex>

#include "emulator/machine.hpp"
#include "ring_attention/core/counted.hpp"
#include "ring_attention/core/text.hpp"
#include "ring_attention/cuda/check.hpp"

namespace ring_attention::lesson_11 {
namespace {

struct Run {
  std::uint64_t seed;
  Finding finding;
  std::string stopped;  // by the emulator, in its words; empty: it was not
};

// The text with `line N, "its text"` for each FILE:N of an exercise.
std::string with_source_lines(std::string text) {
  const std::regex place("(/[^ :\n]*\\.cu):([0-9]+)");
  for (std::smatch found; std::regex_search(text, found, place);) {
    std::ifstream file(found[1]);
    std::string line;
    for (int i = std::stoi(found[2]); i > 0; --i) std::getline(file, line);
    line.erase(0, line.find_first_not_of(' '));
    text = found.prefix().str() + "line " + found[2].str() + ", \"" + line + "\"" + found.suffix().str();
  }
  return text;
}

Run run(std::uint64_t seed, const std::function<Finding()>& examine) {
  emulator::options().seed = seed;
  try {
    return {seed, examine(), ""};
  } catch (const std::exception& error) {
    const std::string text = error.what(), mark = "emulator: ";
    const std::size_t at = text.find(mark);
    if (at == std::string::npos) return {seed, {}, text};
    const std::size_t behind = text.rfind(" [");  // where the judge has called
    return {seed, {}, with_source_lines(text.substr(at + mark.size(), behind - at - mark.size()))};
  }
}

// Same bits, so that NaN is the same as NaN.
bool same(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
}

// What the emulator says about a kernel that it has stopped.
std::string describe_stop(const Run& run, const std::vector<Hint>& hints, bool sometimes) {
  const bool deadlock = run.stopped.find("wait for each other") != std::string::npos;
  std::string means;
  for (const Hint& hint : hints)
    if (hint.said == only_sometimes ? sometimes : run.stopped.find(hint.said) != std::string::npos)
      means = hint.means + ": ";
  return (deadlock ? "a deadlock: " : "the emulator stops the kernel: ") + means + run.stopped;
}

std::string verdict_of(const std::vector<Run>& runs, const std::vector<Hint>& hints) {
  const auto with_seed = [](const Run& run) { return "with EMULATED_SEED=" + std::to_string(run.seed); };
  const auto is_stopped = [](const Run& run) { return !run.stopped.empty(); };
  if (std::ranges::all_of(runs, is_stopped)) return describe_stop(runs.front(), hints, false);
  const auto wrong =
      std::ranges::find_if(runs, [&](const Run& run) { return !is_stopped(run) && !run.finding.right(); });
  const auto stopped = std::ranges::find_if(runs, is_stopped);
  if (wrong == runs.end() && stopped == runs.end()) return "";
  const Run& shown = wrong == runs.end() ? *stopped : *wrong;
  const auto other = std::ranges::find_if(runs, [&](const Run& run) {
    return is_stopped(run) != is_stopped(shown) || !same(run.finding.result, shown.finding.result);
  });
  if (other == runs.end() && runs.size() > 1)
    return "a wrong number, the same with every schedule: " + shown.finding.wrong;
  const std::string words = is_stopped(shown) ? describe_stop(shown, hints, true) : shown.finding.race;
  if (other == runs.end()) return with_seed(shown) + ": " + words;
  return "a race, the result depends on the schedule: " + with_seed(*other) + " " +
         (is_stopped(*other)       ? "the emulator stops the kernel"
          : other->finding.right() ? "it is right"
                                   : "it is another wrong one") +
         ", and " + with_seed(shown) + " " + words;
}

}  // namespace

int judge(const std::string& number, const std::string& name, const std::function<Finding()>& examine,
          const std::vector<Hint>& hints) {
  emulator::options().pauses = true;
  std::vector<Run> runs;
  if (std::getenv("EMULATED_SEED") != nullptr)
    runs.push_back(run(emulator::first_seed(), examine));
  else
    for (std::uint64_t seed = 1; seed <= 20; ++seed) runs.push_back(run(seed, examine));
  const std::string verdict = verdict_of(runs, hints);
  if (!verdict.empty()) std::printf("  FAIL  %s\n", verdict.c_str());
  std::printf("lesson %s %s: %s | error - | %s on the emulator: correctness only\n", number.c_str(),
              name.c_str(), verdict.empty() ? "PASS" : "FAIL", counted(std::ssize(runs), "schedule").c_str());
  return verdict.empty() ? 0 : 1;
}

std::string in_words(double number) { return std::isnan(number) ? "NaN" : format("%.6g", number); }

std::vector<__nv_bfloat16> small_numbers(std::size_t count, std::uint64_t seed) {
  emulator::Random random{seed};
  std::vector<__nv_bfloat16> numbers(count);
  for (__nv_bfloat16& x : numbers)
    x = __float2bfloat16(static_cast<float>(static_cast<int>(random() % 7) - 3));
  return numbers;
}

}  // namespace ring_attention::lesson_11
