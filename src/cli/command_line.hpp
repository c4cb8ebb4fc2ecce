/// \file
/// `CommandLine`: CLI11 with our help, strict numbers, and one line for an error. Only command_line.cpp includes
/// CLI11, which takes seconds to compile.
#pragma once

#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ring_attention/core/shape.hpp"
#include "ring_attention/mpi/agreement.hpp"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace ring_attention {

/// Bounds of an integer option, inclusive. What counts no tokens fits an int.
struct Bounds {
  Index least = 1;
  Index most = largest_count;
};
/// Tokens.
inline constexpr Bounds any_length{1, largest_position};
/// A seed may be any number.
inline constexpr Bounds any_seed{0, std::numeric_limits<Index>::max()};

/// A program, or one command of it, and its options. Values are written on parse; defaults are what they
/// hold when the option is declared.
class CommandLine {
 public:
  /// \param description  the first lines of `--help`
  CommandLine(const std::string& program, const std::string& description);

  /// The heading, in `--help`, of the options that are declared next.
  void section(const std::string& heading);
  void flag(const std::string& name, bool& value, const std::string& help);
  void option(const std::string& name, Index& value, const std::string& help, Bounds bounds = {});
  void option(const std::string& name, double& value, const std::string& help);
  void option(const std::string& name, std::optional<double>& value, const std::string& help);
  void option(const std::string& name, std::optional<Index>& value, const std::string& help,
              Bounds bounds = {});
  void option(const std::string& name, std::string& value, const std::string& help,
              const std::string& letters = "PATH");
  /// One of some words.
  void choice(const std::string& name, std::string& value, const std::vector<std::string>& words,
              const std::string& help);
  /// Integers with commas between them, as many as `letters` has: "B,H,S,D". \param bounds  of all of them
  void list(const std::string& name, std::vector<Index>& value, const std::string& letters,
            const std::string& help, Bounds bounds = {});

  /// `name` and `other` exclude each other.
  void exclude(const std::string& name, const std::string& other);
  /// `name` means nothing without `other`.
  void needs(const std::string& name, const std::string& other);
  /// `name` means nothing unless `other`, an option that is declared, has one of these values.
  void needs(const std::string& name, const std::string& other, const std::vector<std::string>& values);
  /// The flag `now` had the name `old` in the release before: `old` still works, and a line on stderr names `now`.
  void renamed(const std::string& old, const std::string& now);
  /// Text after the options: examples.
  void footer(const std::string& text);

  /// Adds a command, `program NAME ...`. When there are commands, one must be given, unless there are options: a command
  /// of a command, `program bench decode ...`, has its own options and takes none of those in front of it.
  CommandLine& command(const std::string& name, const std::string& description);
  /// Was this command chosen?
  [[nodiscard]] bool chosen() const;

  /// After parse: the chosen command, then every option and its value as text. Equal on ranks that were
  /// started alike.
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> settings() const;

  /// Returns the text to print when the user asked for help or the version; then the program ends.
  /// \throws InputError, one line, for unknown, repeated, missing or contradictory flags and bad values
  [[nodiscard]] std::optional<std::string> parse(int argc, const char* const* argv);
  /// After parse: a line for each flag that was given by its old name.
  [[nodiscard]] std::string old_names() const;
  /// parse() on all ranks of a job, which must have been started with the same flags.
  /// \throws AgreedError. Collective.
  [[nodiscard]] std::optional<std::string> parse(const Communicator& comm, int argc, const char* const* argv);
  /// After parse on every rank: the ranks were started with the same flags. \throws AgreedError. Collective.
  void require_same_on_ranks(const Communicator& comm, bool help) const;

 private:
  explicit CommandLine(std::shared_ptr<CLI::App> app);
  void add(const std::string& name, const std::string& letters, const std::string& default_text,
           const std::string& help, const std::function<void(const std::string&)>& store);
  /// \throws CLI::ValidationError for an option of a chosen command whose other option has another value
  void check_needs() const;

  struct Need {
    const CLI::Option *option, *other;
    std::vector<std::string> values;
  };

  std::shared_ptr<CLI::App> app_;
  std::vector<std::unique_ptr<CommandLine>> commands_;
  std::vector<Need> needs_;
};

/// Calls `work`. Puts the flag in front of the message of an InputError.
decltype(auto) name_flag(const std::string& flag, const auto& work) {
  try {
    return work();
  } catch (const AgreedError& error) {
    throw AgreedError(flag + ": " + error.what());
  } catch (const InputError& error) {
    throw InputError(flag + ": " + error.what());
  }
}

/// `--expect-ranks`: throws AgreedError unless the job has as many ranks (0: any number). Collective.
inline void require_promised_ranks(const Communicator& comm, Index ranks) {
  name_flag("--expect-ranks " + std::to_string(ranks), [&] { require_world_size(comm, ranks); });
}

}  // namespace ring_attention
