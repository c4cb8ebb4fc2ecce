#include "common/lesson.hpp"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <thread>

namespace ring_attention {

struct Lesson::Report {
  nlohmann::ordered_json json{{"figures", nlohmann::ordered_json::object()}};
};

Lesson::Lesson(const std::string& number, const std::string& name, const std::string& claim,
               const Communicator* comm)
    : number_(number),
      name_(name),
      claim_(claim),
      comm_(comm),
      options_(number + "_" + name, claim),
      report_(std::make_unique<Report>()) {
  options_.flag("--json", json_, "Print one JSON object instead of text");
  options_.option("--seed", seed_, "Seed of the random arrays", any_seed);
  if (comm_ == nullptr) return;
  options_.option("--expect-ranks", promised_ranks_, "Fail unless the world has N ranks (0: any)", {0});
  options_.renamed("--np", "--expect-ranks");
}

Lesson::~Lesson() = default;

bool Lesson::prints_text() const { return !json_ && (comm_ == nullptr || comm_->rank() == 0); }
bool Lesson::prints_json() const { return json_ && (comm_ == nullptr || comm_->rank() == 0); }

void Lesson::offer_mutants(const std::vector<std::pair<std::string, std::string>>& mutants) {
  std::vector<std::string> words{"none"};
  std::string help = "Make one known mistake, to see the checks fail";
  for (const auto& [name, description] : mutants) {
    words.push_back(name);
    help += "; " + name + ": " + description;
  }
  if (mutants.size() > 1) {
    mysteries_ = mutants;
    std::ranges::sort(mysteries_, {}, &std::pair<std::string, std::string>::second);
    for (std::size_t i = 1; i <= mutants.size(); ++i) words.push_back("mystery-" + std::to_string(i));
    help += "; mystery-1, ...: the same ones, unnamed";
  }
  options_.choice("--mutant", mutant_, words, help);
}

void Lesson::needs_gpu(const std::string& why_none) {
  no_gpu_ = (why_none.empty() ? "" : "no GPU: ") + why_none;
  options_.choice("--device", device_, {"auto", "cuda"},
                  "auto: skip the lesson if there is no GPU; cuda: fail then");
}

bool Lesson::parse(int argc, const char* const* argv) {
  std::optional<std::string> help;
  if (comm_ != nullptr) {
    help = options_.parse(*comm_, argc, argv);
    if (!help) require_promised_ranks(*comm_, promised_ranks_);
  } else {
    help = options_.parse(argc, argv);
  }
  if (help) {
    if (prints_text()) std::fputs(help->c_str(), stdout);
    return false;
  }
  if (comm_ != nullptr && !all_of_ranks(*comm_, has_gpu()) && has_gpu()) no_gpu_ = "no GPU: on another rank";
  if (device_ == "cuda" && !has_gpu())
    throw AgreedError("--device cuda: " + no_gpu_ + ": leave it out to skip the lesson");
  if (comm_ == nullptr || comm_->rank() == 0) std::fputs(options_.old_names().c_str(), stderr);
  heading("Lesson " + number_ + ": " + name_);
  say(claim_);
  if (mutant_ != "none") say("MUTANT: " + mutant_ + ". The checks below must fail.");
  for (std::size_t i = 0; i < mysteries_.size(); ++i)
    if (mutant_ == "mystery-" + std::to_string(i + 1)) mutant_ = mysteries_[i].first;
  if (!has_gpu()) skip();
  return has_gpu();
}

void Lesson::heading(const std::string& title) const {
  say();
  say(title);
  say(std::string(title.size(), '-'));
}

void Lesson::say(const std::string& line) const {
  if (prints_text()) std::printf("%s\n", line.c_str());
}

void Lesson::say_if_cores_are_shared(const std::string& what) const {
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  if (comm_->size() > cores) say(format("  %d ranks on %d cores: ", comm_->size(), cores) + what);
}

bool Lesson::measures(Index tokens) const {
  constexpr Index fewest = 32;
  if (!has_mutant() && tokens >= fewest) return true;
  say(std::string("  left out: times of ") + (has_mutant() ? "a wrong program" : "so few tokens") +
      " say nothing");
  return false;
}

void Lesson::print(const std::string& name, const Table& table) {
  if (prints_text()) std::fputs(table.text().c_str(), stdout);
  report_->json["figures"][name] = table.rows();
}

void Lesson::check(const std::string& what, bool ok, const std::string& detail) {
  const bool all = comm_ == nullptr ? ok : all_of_ranks(*comm_, ok);
  ++checks_;
  if (!all) ++failed_;
  if (!ok && comm_ != nullptr && comm_->rank() > 0)  // rank 0 prints the line below
    std::fprintf(stderr, "[rank %d] failed: %s %s\n", comm_->rank(), what.c_str(), detail.c_str());
  const std::string line = what + (detail.empty() ? "" : ": " + detail);
  say((all ? "  ok    " : "  FAIL  ") + line);
  report_->json["checks"].push_back({{"what", what}, {"ok", all}, {"detail", detail}});
}

void Lesson::check(const std::string& what, const Comparison& comparison) {
  const double error = comm_ == nullptr ? comparison.max_error : max_over_ranks(*comm_, comparison.max_error);
  if (!(error <= error_)) error_ = error;
  check(what, comparison.ok, comparison.ok ? "max error " + human_error(error) : describe(comparison));
}

int Lesson::finish(const std::string& showed) {
  const bool pass = checks_ > 0 && failed_ == 0;
  say();
  say("lesson " + number_ + " " + name_ + ": " + (pass ? "PASS" : "FAIL") + " | error " +
      human_error(error_) + " | " + showed);
  if (prints_json()) {
    nlohmann::ordered_json report{{"lesson", number_ + "_" + name_},
                                  {"ok", pass},
                                  {"showed", showed},
                                  {"error", error_},
                                  {"seed", seed_}};
    if (comm_ != nullptr) report["ranks"] = comm_->size();
    report.update(report_->json);
    std::printf("%s\n", report.dump(2).c_str());
  }
  return pass ? 0 : 1;
}

void Lesson::skip() const {
  say();
  say("lesson " + number_ + " " + name_ + ": SKIPPED | error - | " + no_gpu_);
  if (prints_json()) {
    const nlohmann::ordered_json report{{"lesson", number_ + "_" + name_}, {"skipped", no_gpu_}};
    std::printf("%s\n", report.dump(2).c_str());
  }
}

int serial_main(const std::function<int()>& body) {
  try {
    return body();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 2;
  }
}

}  // namespace ring_attention
