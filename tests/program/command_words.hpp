// What each command says to words of a command line, in this process and before any work.
#pragma once

#include <string>
#include <vector>

#include "program/bench/decode.hpp"
#include "program/bench/options.hpp"
#include "program/decode/options.hpp"
#include "program/example/command.hpp"
#include "program/plan/report.hpp"
#include "program/train/options.hpp"

namespace ring_attention::test {

template <class Options>
using Declare = void (*)(CommandLine&, Options&);

/// What a command does with its options before any work; a plan is all of its work.
inline void use(const PlanOptions& options) { (void)to_json(make_plan(options)); }
inline void use(const ExampleOptions& /*options*/) {}
void use(const auto& options) { validate(options); }

/// The error of a command, started with some words; empty: it takes them.
template <class Options>
[[nodiscard]] std::string error_of(Declare<Options> declare, const std::vector<std::string>& words) {
  CommandLine command("command", "");
  Options options;
  declare(command, options);
  std::vector<const char*> pointers{"command"};
  for (const std::string& word : words) pointers.push_back(word.c_str());
  try {
    (void)command.parse(static_cast<int>(pointers.size()), pointers.data());
    use(options);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

/// The names of all options of a command: "--seed".
template <class Options>
[[nodiscard]] std::vector<std::string> flags_of(Declare<Options> declare) {
  CommandLine command("command", "");
  Options options;
  declare(command, options);
  std::vector<std::string> flags;
  for (const auto& [flag, value] : command.settings())
    if (flag.starts_with("--")) flags.push_back(flag);
  return flags;
}

}  // namespace ring_attention::test
