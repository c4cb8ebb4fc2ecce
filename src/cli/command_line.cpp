#include "cli/command_line.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "cli/option_text.hpp"
#include "ring_attention/core/error.hpp"
#include "ring_attention/core/text.hpp"
#include "ring_attention/cpu/isa.hpp"

namespace ring_attention {
namespace {

/// A flag that takes a value, or (without `store`) one that does not.
struct Entry {
  CLI::Option* option;
  std::string section;
  HelpEntry help;
  std::function<void(const std::string&)> store;
};

std::string joined(const std::vector<std::string>& words, const std::string& between) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : between) + word;
  return text;
}

using Renamed = std::vector<std::pair<std::string, std::string>>;

/// What CLI11 cannot parse: an unknown word, no command, or a flag without its value (or with a value that
/// it does not take).
std::string in_plain_words(const CLI::ParseError& error, const CLI::App& app, const Renamed& renamed) {
  const bool no_command = dynamic_cast<const CLI::RequiredError*>(&error) != nullptr;
  const std::vector<std::string> strays = app.remaining(true);
  if (!strays.empty()) {
    const std::string& stray = strays.front();
    for (const auto& [old, now] : renamed)
      if (stray.substr(0, stray.find('=')) == old) return old + " is now " + now;
    const char* kind = no_command ? "unknown command" : "unexpected word";
    return format("%s '%s'", stray.starts_with("-") ? "unknown flag" : kind, stray.c_str());
  }
  if (no_command) {
    std::vector<std::string> names;
    for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
    return "a command is missing, one of " + joined(names, ", ");
  }
  std::string line = error.what();
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) == nullptr) return line;
  const std::size_t begin = std::min(line.find_first_not_of('-'), line.size());
  const std::string name = "--" + line.substr(begin, line.find_first_of(": ", begin) - begin);
  return name + (line.find("override") == std::string::npos ? " needs a value" : " takes no value");
}

}  // namespace

/// CLI11 splits the command line into flags and words. This class interprets them, so that every message
/// names the flag and the remedy.
struct CommandLine::Parser {
  std::unique_ptr<CLI::App> owned;  // the program; a command belongs to its program
  CLI::App* app = nullptr;
  std::string section = "Options";
  std::string footer;
  std::vector<Entry> entries;
  std::vector<std::pair<std::string, std::string>> exclusions, needs;
  Renamed renamed;
  std::vector<std::unique_ptr<CommandLine>> commands;
};

CommandLine::CommandLine(const std::string& program, const std::string& description)
    : parser_(std::make_unique<Parser>()) {
  parser_->owned = std::make_unique<CLI::App>(description, program);
  parser_->app = parser_->owned.get();
  parser_->app->set_version_flag(
      "--version", program + " " RING_ATTENTION_VERSION " (CPU kernels: " + name_of(best_isa()) + ")");
  parser_->app->set_help_flag("--help,-h");
}
CommandLine::CommandLine(std::unique_ptr<Parser> parser) : parser_(std::move(parser)) {}
CommandLine::CommandLine(CommandLine&&) noexcept = default;
CommandLine::~CommandLine() = default;

void CommandLine::section(const std::string& heading) { parser_->section = heading; }

void CommandLine::add(const std::string& name, const std::string& value_word, const std::string& default_text,
                      const std::string& help, std::function<void(const std::string&)> store) {
  CLI::Option* option = parser_->app->add_option(name, CLI::callback_t{});
  option->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  const std::string note = default_text.empty() ? "" : " (default " + default_text + ")";
  parser_->entries.push_back(
      {option, parser_->section, {name + " " + value_word, help + note}, std::move(store)});
}

void CommandLine::flag(const std::string& name, bool& value, const std::string& help) {
  CLI::Option* option = parser_->app->add_flag(name, value)->disable_flag_override();
  parser_->entries.push_back({option, parser_->section, {name, help}, nullptr});
}

void CommandLine::option(const std::string& name, Index& value, const std::string& help, Bounds bounds) {
  add(name, "N", std::to_string(value), help,
      [=, &value](const std::string& text) { value = whole_number(name, text, bounds); });
}

void CommandLine::option(const std::string& name, std::optional<Index>& value, const std::string& help,
                         Bounds bounds) {
  add(name, "N", "", help,
      [=, &value](const std::string& text) { value = whole_number(name, text, bounds); });
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
  add(name, "WORD", value, help + ". One of " + joined(words, ", "), [=, &value](const std::string& text) {
    if (std::find(words.begin(), words.end(), text) == words.end())
      throw InputError(name + " must be one of " + joined(words, ", ") + ", not '" + text + "'");
    value = text;
  });
}

void CommandLine::list(const std::string& name, std::vector<Index>& value, const std::string& letters,
                       const std::string& help, Bounds bounds) {
  add(name, letters, "", help,
      [=, &value](const std::string& text) { value = whole_numbers(name, text, letters, bounds); });
}

void CommandLine::exclude(const std::string& name, const std::string& other) {
  parser_->exclusions.emplace_back(name, other);
}

void CommandLine::needs(const std::string& name, const std::string& other) {
  parser_->needs.emplace_back(name, other);
}

void CommandLine::renamed(const std::string& old, const std::string& now) {
  parser_->renamed.emplace_back(old, now);
}

void CommandLine::footer(const std::string& text) { parser_->footer = text; }

CommandLine& CommandLine::command(const std::string& name, const std::string& description) {
  if (parser_->entries.empty()) parser_->app->require_subcommand(1);
  auto child = std::make_unique<Parser>();
  child->app = parser_->app->add_subcommand(name, description);
  parser_->commands.push_back(std::unique_ptr<CommandLine>(new CommandLine(std::move(child))));
  return *parser_->commands.back();
}

bool CommandLine::chosen() const { return parser_->app->parsed(); }

bool CommandLine::given(const std::string& name) const { return parser_->app->get_option(name)->count() > 0; }

void CommandLine::store() const {
  for (const Entry& entry : parser_->entries) {
    const std::string name = entry.option->get_name();
    if (entry.option->count() > 1)
      throw InputError(name + " was given " + std::to_string(entry.option->count()) + " times: give it once");
    if (entry.option->count() == 0 || !entry.store) continue;
    const std::string& text = entry.option->results().front();
    if (text.empty() || text.starts_with("--")) throw InputError(name + " needs a value: " + entry.help.name);
    entry.store(text);
  }
  for (const auto& [name, other] : parser_->exclusions)
    if (given(name) && given(other))
      throw InputError(name + " and " + other + " contradict each other: give one of them");
  for (const auto& [name, other] : parser_->needs)
    if (given(name) && !given(other)) throw InputError(name + " goes with " + other + ": give both, or none");
}

std::string CommandLine::full_name() const {
  std::string name = parser_->app->get_name();
  for (const CLI::App* app = parser_->app->get_parent(); app != nullptr; app = app->get_parent())
    name = app->get_name() + " " + name;
  return name;
}

std::string CommandLine::help() const {
  const std::string command = parser_->commands.empty()  ? ""
                              : parser_->entries.empty() ? " COMMAND"
                                                         : " [COMMAND]";
  std::string text =
      wrapped(parser_->app->get_description()) + "\n\nUsage: " + full_name() + command + " [OPTION...]\n";
  std::vector<std::pair<std::string, std::vector<HelpEntry>>> sections;
  const auto add_line = [&](const std::string& section, const HelpEntry& line) {
    if (sections.empty() || sections.back().first != section) sections.push_back({section, {}});
    sections.back().second.push_back(line);
  };
  for (const auto& child : parser_->commands)
    add_line("Commands (" + full_name() + " COMMAND --help says more)",
             {child->parser_->app->get_name(), child->parser_->app->get_description()});
  for (const Entry& entry : parser_->entries) add_line(entry.section, entry.help);
  const std::string last = parser_->section == "Options" ? "Options" : "Help";
  add_line(last, {"--help, -h", "Print this text and exit"});
  if (parser_->owned) add_line(last, {"--version", "Print the version and the instruction set, and exit"});

  std::size_t width = 0;
  for (const auto& [section, lines] : sections) width = std::max(width, widest_name(lines));
  for (const auto& [section, lines] : sections) text += "\n" + section + ":\n" + help_columns(lines, width);
  return text + (parser_->footer.empty() ? "" : "\n" + parser_->footer + "\n");
}

std::vector<std::pair<std::string, std::string>> CommandLine::settings() const {
  std::vector<std::pair<std::string, std::string>> all;
  for (const auto& command : parser_->commands) {
    if (!command->chosen()) continue;
    all.emplace_back("the command", command->parser_->app->get_name());
    for (const auto& setting : command->settings()) all.push_back(setting);
  }
  for (const Entry& entry : parser_->entries) {
    const std::string given = joined(entry.option->results(), ",");
    all.emplace_back(entry.option->get_name(), given.empty() ? "its default" : given);
  }
  return all;
}

std::optional<std::string> CommandLine::parse(int argc, const char* const* argv) {
  CLI::App& app = *parser_->app;
  std::vector<const CommandLine*> chain{this};  // then its command, and the command of that one
  const auto choose = [&] {
    const auto is_chosen = [](const auto& command) { return command->chosen(); };
    while (true) {
      const auto& commands = chain.back()->parser_->commands;
      const auto found = std::ranges::find_if(commands, is_chosen);
      if (found == commands.end()) return;
      chain.push_back(found->get());
    }
  };
  try {
    app.parse(argc, argv);
    choose();
    for (const CommandLine* command : chain) command->store();
    for (std::size_t i = 0; i + 1 < chain.size(); ++i)
      for (const Entry& entry : chain[i]->parser_->entries)
        if (entry.option->count() > 0)
          throw InputError(entry.option->get_name() +
                           " goes behind the last command: " + chain.back()->full_name());
    return std::nullopt;
  } catch (const CLI::CallForHelp&) {
    choose();
    return chain.back()->help();
  } catch (const CLI::CallForVersion& version) {
    return std::string(version.what()) + "\n";
  } catch (const CLI::ParseError& error) {
    choose();
    throw InputError(in_plain_words(error, app, chain.back()->parser_->renamed) + ": see " +
                     chain.back()->full_name() + " --help");
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
