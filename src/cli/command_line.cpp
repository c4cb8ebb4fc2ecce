#include "cli/command_line.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <sstream>

#include "ring_attention/core/error.hpp"
#include "ring_attention/core/text.hpp"
#include "ring_attention/cpu/isa.hpp"
#include "ring_attention/mpi/collectives.hpp"

namespace ring_attention {
namespace {

std::string joined(const std::vector<std::string>& words, const std::string& between = ", ") {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : between) + word;
  return text;
}

/// `1,8,1024,64`: as many numbers as `letters`, B,H,S,D, has. Decimal and strict: CLI11 takes 010 as octal, and leaves
/// out an empty part.
std::vector<Index> whole_numbers(const std::string& flag, const std::string& letters, const std::string& text,
                                 Bounds bounds) {
  std::vector<Index> numbers;
  std::istringstream parts(text + ",");  // getline does not see an empty last part
  bool good = std::ranges::count(text, ',') == std::ranges::count(letters, ',');
  for (std::string part; std::getline(parts, part, ',');) {
    Index number = 0;
    const char* end = part.data() + part.size();
    const auto [stop, error] = std::from_chars(part.data(), end, number);
    good = good && error == std::errc{} && stop == end && number >= bounds.least && number <= bounds.most;
    numbers.push_back(number);
  }
  if (!good)
    throw CLI::ValidationError(flag, "needs " + letters + ", each a whole number from " +
                                         std::to_string(bounds.least) + " to " + std::to_string(bounds.most) +
                                         ", not '" + text + "'");
  return numbers;
}

/// Not nan and not inf.
double finite_number(const std::string& flag, const std::string& text) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  if (end == text.c_str() || *end != '\0' || !std::isfinite(number))
    throw CLI::ValidationError(flag, "must be a finite number, not '" + text + "'");
  return number;
}

/// Breaks `text` at spaces, so that lines have at most 100 characters; lines after the first start with `indent` spaces.
std::string wrapped(const std::string& text, std::size_t indent = 0) {
  constexpr std::size_t line_width = 100;
  std::string result;
  std::size_t column = indent, last_space = 0;  // of the line; 0: it has none
  for (const char c : text) {
    result += c;
    ++column;
    if (c == ' ') last_space = result.size() - 1;
    if (c == '\n') column = last_space = 0;
    if (column <= line_width || last_space == 0) continue;
    result.replace(last_space, 1, '\n' + std::string(indent, ' '));
    column = result.size() - last_space - 1;
    last_space = 0;
  }
  return result;
}

/// A section of `--help`: two columns under a heading.
struct Section {
  std::string heading;
  std::vector<std::pair<std::string, std::string>> lines;
};

std::string help_of(const CLI::App* app, const std::string& name, CLI::AppFormatMode /*mode*/) {
  std::vector<Section> sections;
  const auto commands = app->get_subcommands({});
  if (!commands.empty()) sections.push_back({"Commands (" + name + " COMMAND --help says more)", {}});
  for (const CLI::App* command : commands)
    sections.front().lines.emplace_back(command->get_name(), command->get_description());
  std::vector<std::string> groups = app->get_groups();
  std::rotate(groups.begin(), groups.begin() + 1, groups.end());  // --help was declared first
  for (const std::string& group : groups) {
    if (group.empty()) continue;  // hidden
    sections.push_back({group, {}});
    for (const CLI::Option* option : app->get_options([&](auto* any) { return any->get_group() == group; })) {
      const std::string value = option->get_type_name(), given = option->get_default_str();
      sections.back().lines.emplace_back(
          option->get_name(false, true) + (value.empty() ? "" : " " + value),
          option->get_description() + (given.empty() ? "" : " (default " + given + ")"));
    }
  }

  const std::string command = commands.empty()                        ? ""
                              : app->get_require_subcommand_min() > 0 ? " COMMAND"
                                                                      : " [COMMAND]";
  std::string text = wrapped(app->get_description()) + "\n\nUsage: " + name + command + " [OPTION...]\n";
  std::size_t width = 0;
  for (const Section& section : sections)
    for (const auto& line : section.lines) width = std::max(width, line.first.size());
  for (const Section& section : sections) {
    text += "\n" + section.heading + ":\n";
    for (const auto& [left, right] : section.lines)
      text += "  " + left + std::string(width - left.size() + 2, ' ') + wrapped(right, width + 4) + "\n";
  }
  return text + (app->get_footer().empty() ? "" : "\n" + app->get_footer() + "\n");
}

/// The program, its command, and the command of that one, as far as they were given.
std::vector<const CLI::App*> chosen_in(const CLI::App& program) {
  std::vector<const CLI::App*> chain{&program};
  while (!chain.back()->get_subcommands().empty()) chain.push_back(chain.back()->get_subcommands().front());
  return chain;
}

/// `ring-attention bench decode`
std::string full_name(const CLI::App& program) {
  std::vector<std::string> names;
  for (const CLI::App* app : chosen_in(program)) names.push_back(app->get_name());
  return joined(names, " ");
}

}  // namespace

CommandLine::CommandLine(const std::string& program, const std::string& description)
    : app_(std::make_shared<CLI::App>(description, program)) {
  app_->formatter_fn(help_of);
  app_->set_help_flag("--help,-h", "Print this text and exit")->group("Help");
  app_->set_version_flag("--version",
                         program + " " RING_ATTENTION_VERSION " (CPU kernels: " + name_of(best_isa()) + ")",
                         "Print the version and the instruction set, and exit")
      ->group("Help");
}

CommandLine::CommandLine(std::shared_ptr<CLI::App> app) : app_(std::move(app)) {}

void CommandLine::section(const std::string& heading) { app_->option_defaults()->group(heading); }

void CommandLine::add(const std::string& name, const std::string& letters, const std::string& default_text,
                      const std::string& help, const std::function<void(const std::string&)>& store) {
  app_->add_option_function(name, store, help)
      ->type_name(letters)
      ->default_str(default_text)
      ->check([](const std::string& text) {
        return text.empty() || text.starts_with("--") ? "needs a value, not '" + text + "'" : "";
      });
}

void CommandLine::flag(const std::string& name, bool& value, const std::string& help) {
  app_->add_flag(name, value, help)
      ->disable_flag_override()
      ->multi_option_policy(CLI::MultiOptionPolicy::Throw);
}

void CommandLine::option(const std::string& name, Index& value, const std::string& help, Bounds bounds) {
  add(name, "N", std::to_string(value), help,
      [=, &value](const std::string& text) { value = whole_numbers(name, "N", text, bounds).front(); });
}

void CommandLine::option(const std::string& name, std::optional<Index>& value, const std::string& help,
                         Bounds bounds) {
  add(name, "N", "", help,
      [=, &value](const std::string& text) { value = whole_numbers(name, "N", text, bounds).front(); });
}

void CommandLine::option(const std::string& name, double& value, const std::string& help) {
  add(name, "X", format("%g", value), help,
      [=, &value](const std::string& text) { value = finite_number(name, text); });
}

void CommandLine::option(const std::string& name, std::optional<double>& value, const std::string& help) {
  add(name, "X", "", help, [=, &value](const std::string& text) { value = finite_number(name, text); });
}

void CommandLine::option(const std::string& name, std::string& value, const std::string& help,
                         const std::string& letters) {
  add(name, letters, value, help, [&value](const std::string& text) { value = text; });
}

void CommandLine::choice(const std::string& name, std::string& value, const std::vector<std::string>& words,
                         const std::string& help) {
  option(name, value, help + ". One of " + joined(words), "WORD");
  app_->get_option(name)->check(CLI::IsMember(words).description(""))->transform([](const std::string& word) {
    return word == "fp32" ? "float32" : word == "fp64" ? "float64" : word;
  });
}

void CommandLine::list(const std::string& name, std::vector<Index>& value, const std::string& letters,
                       const std::string& help, Bounds bounds) {
  add(name, letters, "", help,
      [=, &value](const std::string& text) { value = whole_numbers(name, letters, text, bounds); });
}

void CommandLine::exclude(const std::string& name, const std::string& other) {
  app_->get_option(name)->excludes(app_->get_option(other));
}

void CommandLine::needs(const std::string& name, const std::string& other) {
  app_->get_option(name)->needs(app_->get_option(other));
}

void CommandLine::needs(const std::string& name, const std::string& other,
                        const std::vector<std::string>& values) {
  needs_.push_back({app_->get_option(name), app_->get_option(other), values});
}

void CommandLine::check_needs() const {
  for (const auto& [option, other, values] : needs_) {
    const std::string value = other->count() == 0 ? other->get_default_str() : other->results().front();
    if (option->count() > 0 && std::ranges::count(values, value) == 0)
      throw CLI::ValidationError(option->get_name() + " goes with " + other->get_name() + " " +
                                 joined(values, " or "));
  }
  for (const auto& command : commands_)
    if (command->chosen()) command->check_needs();
}

void CommandLine::renamed(const std::string& old, const std::string& now) {
  CLI::Option* option = app_->get_option(now);
  const auto pass_on = [option](const CLI::results_t& values) {
    for (const std::string& value : values) option->add_result(value);
    option->run_callback();
    return true;
  };
  app_->add_option(old, pass_on, old + " is now " + now)->group("");  // hidden
}

std::string CommandLine::old_names() const {
  std::string lines;
  for (const CLI::App* app : chosen_in(*app_))
    for (const CLI::Option* option : app->get_options())
      if (option->get_group().empty() && option->count() > 0) lines += option->get_description() + "\n";
  return lines;
}

void CommandLine::footer(const std::string& text) { app_->footer(text); }

CommandLine& CommandLine::command(const std::string& name, const std::string& description) {
  const bool has_options = app_->get_groups().size() > 1;  // beside Help
  app_->require_subcommand(has_options ? 0 : 1, 1);
  CLI::App* child = app_->add_subcommand(name, description);
  child->option_defaults()->group("Options");
  child->get_help_ptr()->group("Help");
  for (CLI::Option* option : app_->get_options()) child->excludes(option);
  commands_.push_back(std::unique_ptr<CommandLine>(new CommandLine(app_->get_subcommand_ptr(child))));
  return *commands_.back();
}

bool CommandLine::chosen() const { return app_->parsed(); }

std::vector<std::pair<std::string, std::string>> CommandLine::settings() const {
  std::vector<std::pair<std::string, std::string>> all{{"the command", full_name(*app_)}};
  for (const CLI::App* app : chosen_in(*app_))
    for (const CLI::Option* option : app->get_options())
      all.emplace_back(option->get_name(), option->count() == 0 ? "its default" : joined(option->results()));
  return all;
}

std::optional<std::string> CommandLine::parse(int argc, const char* const* argv) {
  try {
    app_->parse(argc, argv);
    check_needs();
    return std::nullopt;
  } catch (const CLI::CallForVersion& version) {
    return std::string(version.what()) + "\n";
  } catch (const CLI::ParseError& error) {
    const auto asks_for_help = [](const CLI::App* app) { return app->get_help_ptr()->count() > 0; };
    if (std::ranges::any_of(chosen_in(*app_), asks_for_help)) return app_->help();
    const std::vector<std::string> strays = app_->remaining(true);
    const std::string line =
        strays.empty() ? error.what() : CLI::ExtrasError(std::vector{strays.front()}).what();
    throw InputError(line + ": see " + full_name(*app_) + " --help");
  }
}

std::optional<std::string> CommandLine::parse(const Communicator& comm, int argc, const char* const* argv) {
  std::optional<std::string> help;
  agree(comm, [&] { help = parse(argc, argv); });
  require_same_on_ranks(comm, help.has_value());
  return help;
}

void CommandLine::require_same_on_ranks(const Communicator& comm, bool help) const {
  require_same(comm, "--help or --version", help ? 1 : 0);
  if (help) return;
  // One comparison of all flags first: a collective call for each flag is slow on many ranks.
  std::string all;
  for (const auto& [field, value] : settings()) all += field + '=' + value + '\n';
  std::string of_rank_0 = all;
  broadcast(comm, of_rank_0);
  if (!all_of_ranks(comm, all == of_rank_0))
    for (const auto& [field, value] : settings()) require_same(comm, field, value);
}

}  // namespace ring_attention
