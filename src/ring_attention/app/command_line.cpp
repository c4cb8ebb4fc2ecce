#include "ring_attention/app/command_line.hpp"

#include <CLI/CLI.hpp>

#include "ring_attention/core/error.hpp"

namespace ring_attention {

struct CommandLine::Parser {
  std::unique_ptr<CLI::App> owned;  // the program; a command belongs to its program
  CLI::App* app = nullptr;
  std::vector<std::unique_ptr<CommandLine>> commands;
};

CommandLine::CommandLine(const std::string& program, const std::string& description)
    : parser_(std::make_unique<Parser>()) {
  parser_->owned = std::make_unique<CLI::App>(description, program);
  parser_->app = parser_->owned.get();
  parser_->app->set_version_flag("--version", program + " " RING_ATTENTION_VERSION);
  parser_->app->set_help_flag("--help,-h", "Print this text and exit");
  parser_->app->option_defaults()->always_capture_default();
}
CommandLine::CommandLine(std::unique_ptr<Parser> parser) : parser_(std::move(parser)) {}
CommandLine::CommandLine(CommandLine&&) noexcept = default;
CommandLine::~CommandLine() = default;

void CommandLine::section(const std::string& heading) { parser_->app->option_defaults()->group(heading); }

void CommandLine::flag(const std::string& name, bool& value, const std::string& help) {
  parser_->app->add_flag(name, value, help);
}

void CommandLine::option(const std::string& name, Index& value, const std::string& help, Bounds bounds) {
  const auto in_bounds = [bounds, name](const std::string& text) -> std::string {
    Index number = 0;
    if (!CLI::detail::lexical_cast(text, number)) return {};  // the conversion reports it
    if (number >= bounds.least && number <= bounds.most) return {};
    std::string range = "at least " + std::to_string(bounds.least);
    if (bounds.most != std::numeric_limits<Index>::max())
      range += " and at most " + std::to_string(bounds.most);
    return "must be " + range + ", not " + text;
  };
  parser_->app->add_option(name, value, help)->type_name("N")->check(CLI::Validator(in_bounds, ""));
}

void CommandLine::option(const std::string& name, double& value, const std::string& help) {
  parser_->app->add_option(name, value, help)->type_name("X");
}

void CommandLine::option(const std::string& name, std::optional<double>& value, const std::string& help) {
  parser_->app->add_option(name, value, help)->type_name("X");
}

void CommandLine::option(const std::string& name, std::optional<Index>& value, const std::string& help) {
  parser_->app->add_option(name, value, help)->type_name("N");
}

void CommandLine::option(const std::string& name, std::string& value, const std::string& help) {
  parser_->app->add_option(name, value, help)->type_name("PATH");
}

void CommandLine::choice(const std::string& name, std::string& value, const std::vector<std::string>& words,
                         const std::string& help) {
  parser_->app->add_option(name, value, help)->type_name("WORD")->check(CLI::IsMember(words));
}

void CommandLine::list(const std::string& name, std::vector<Index>& value, int count,
                       const std::string& help) {
  parser_->app->add_option(name, value, help)
      ->delimiter(',')
      ->expected(count)
      ->type_name(count == 2 ? "N,N" : "N,N,...");
}

void CommandLine::exclude(const std::string& name, const std::string& other) {
  parser_->app->get_option(name)->excludes(parser_->app->get_option(other));
}

void CommandLine::footer(const std::string& text) { parser_->app->footer(text); }

CommandLine& CommandLine::command(const std::string& name, const std::string& description) {
  parser_->app->require_subcommand(1);
  auto child = std::make_unique<Parser>();
  child->app = parser_->app->add_subcommand(name, description);
  parser_->commands.push_back(std::unique_ptr<CommandLine>(new CommandLine(std::move(child))));
  return *parser_->commands.back();
}

bool CommandLine::chosen() const { return parser_->app->parsed(); }

std::vector<std::pair<std::string, std::string>> CommandLine::settings() const {
  const CLI::App* app = parser_->app;
  std::vector<std::pair<std::string, std::string>> all;
  if (!app->get_subcommands().empty()) {
    app = app->get_subcommands().front();
    all.emplace_back("the command", app->get_name());
  }
  for (const CLI::Option* option : app->get_options()) {
    std::string value;
    for (const std::string& result : option->results()) value += (value.empty() ? "" : ",") + result;
    all.emplace_back(option->get_name(), value.empty() ? "its default" : value);
  }
  return all;
}

std::optional<std::string> CommandLine::parse(int argc, const char* const* argv) {
  CLI::App& app = *parser_->app;
  try {
    app.parse(argc, argv);
    return std::nullopt;
  } catch (const CLI::CallForHelp&) {
    return app.help();
  } catch (const CLI::CallForVersion& version) {
    return std::string(version.what()) + "\n";
  } catch (const CLI::ParseError& error) {
    std::string line = error.what();
    for (char& c : line)
      if (c == '\n') c = ' ';
    throw InputError(line + " (see " + app.get_name() + " --help)");
  }
}

std::optional<std::string> CommandLine::parse(const Communicator& comm, int argc, const char* const* argv) {
  std::optional<std::string> help;
  agree(comm, [&] { help = parse(argc, argv); });
  require_same(comm, "--help or --version", help ? 1 : 0);
  if (!help)
    for (const auto& [field, value] : settings()) require_same(comm, field, value);
  return help;
}

}  // namespace ring_attention
