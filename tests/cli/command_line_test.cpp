// Flags as a program declares them, and what a user gets to read.
#include "cli/command_line.hpp"

#include <gtest/gtest.h>

#include <array>

#include "support/input_error.hpp"

namespace ring_attention::test {
namespace {

/// A program with two commands and one option of each kind.
struct Program {
  CommandLine words{"prog", "What it is for."};
  CommandLine& turn = words.command("turn", "Turns");
  CommandLine& stop = words.command("stop", "Stops");
  bool fast = false, slow = false;
  Index steps = 3;
  std::optional<Index> offset;
  double speed = 1.5;
  std::optional<double> scale;
  std::string out = "here";
  std::string how = "left";
  std::vector<Index> shape;

  Program() {
    turn.section("How");
    turn.flag("--fast", fast, "Hurry");
    turn.flag("--slow", slow, "Do not hurry");
    turn.option("--steps", steps, "Steps to make", {1, 100});
    turn.option("--offset", offset, "Where to begin", {-5, 5});
    turn.section("What");
    turn.option("--speed", speed, "Speed");
    turn.option("--scale", scale, "Scale");
    turn.option("--out", out, "Directory");
    turn.choice("--how", how, {"left", "right"}, "Which way");
    turn.list("--shape", shape, "B,S", "Extents");
    turn.exclude("--fast", "--slow");
    turn.needs("--offset", "--steps");
    turn.renamed("--direction", "--how");
    turn.footer("Example: prog turn");
  }

  std::optional<std::string> parse(std::vector<const char*> arguments) {
    arguments.insert(arguments.begin(), "prog");
    return words.parse(static_cast<int>(arguments.size()), arguments.data());
  }
};

std::string complaint(const std::vector<const char*>& arguments) {
  Program program;
  std::string line = input_error([&] { (void)program.parse(arguments); });
  if (const auto at = line.find("At Most 1"); at != std::string::npos)
    line[at + 3] = 'm';  // CLI11 before 2.6
  return line;
}

TEST(CommandLine, WritesWhatWasGiven) {
  Program program;
  EXPECT_FALSE(program.parse({"turn", "--fast", "--steps", "7", "--offset", "-2", "--speed=2.5", "--scale",
                              "-1e-3", "--out", "a b", "--how", "right", "--shape", "4,5"}));
  EXPECT_TRUE(program.turn.chosen());
  EXPECT_FALSE(program.stop.chosen());
  EXPECT_TRUE(program.fast);
  EXPECT_FALSE(program.slow);
  EXPECT_EQ(program.steps, 7);
  EXPECT_EQ(program.offset, -2);
  EXPECT_EQ(program.speed, 2.5);
  EXPECT_EQ(program.scale, -1e-3);
  EXPECT_EQ(program.out, "a b");
  EXPECT_EQ(program.how, "right");
  EXPECT_EQ(program.shape, (std::vector<Index>{4, 5}));
}

TEST(CommandLine, TakesAnOldNameAndNamesTheNewOne) {
  Program program;
  EXPECT_FALSE(program.parse({"turn", "--direction", "right"}));
  EXPECT_EQ(program.how, "right");
  EXPECT_EQ(program.words.old_names(), "--direction is now --how\n");
  Program other;
  EXPECT_FALSE(other.parse({"turn", "--how", "right"}));
  EXPECT_EQ(other.words.old_names(), "");
}

TEST(CommandLine, KeepsDefaults) {
  Program program;
  EXPECT_FALSE(program.parse({"turn"}));
  EXPECT_EQ(program.steps, 3);
  EXPECT_EQ(program.offset, std::nullopt);
  EXPECT_EQ(program.scale, std::nullopt);
  EXPECT_EQ(program.how, "left");
  EXPECT_TRUE(program.shape.empty());
}

TEST(CommandLine, NamesTheFlagAndTheRemedy) {
  EXPECT_EQ(complaint({}), "A subcommand is required: see prog --help");
  EXPECT_EQ(complaint({"walk"}), "The following argument was not expected: walk: see prog --help");
  EXPECT_EQ(complaint({"--fast"}), "The following argument was not expected: --fast: see prog --help");
  const std::vector<std::pair<std::vector<const char*>, std::string>> of_turn{
      {{"--step", "3"}, "The following argument was not expected: --step"},
      {{"stray"}, "The following argument was not expected: stray"},
      {{"--steps"}, "--steps: 1 required N missing"},
      {{"--steps", "--fast"}, "--steps: needs a value, not '--fast'"},
      {{"--out", ""}, "--out: needs a value, not ''"},
      {{"--fast=yes"}, "fast was given a disallowed flag override"},
      {{"--fast", "--fast"}, "--fast: At most 1 required but received 2"},
      {{"--steps", "3", "--steps", "4", "--steps", "5"}, "--steps: At most 1 required but received 3"},
      {{"--slow", "--fast"}, "--fast excludes --slow"},
      {{"--offset", "1"}, "--offset requires --steps"},
      {{"--how", "up"}, "--how: up not in {left,right}"},
      {{"--direction", "up"}, "--how: up not in {left,right}"},
      {{"--direction", "left", "--how", "left"}, "--how: At most 1 required but received 2"}};
  for (auto [arguments, said] : of_turn) {
    arguments.insert(arguments.begin(), "turn");
    EXPECT_EQ(complaint(arguments), said + ": see prog turn --help");
  }
}

TEST(CommandLine, TakesWholeNumbersInBounds) {
  const std::string wanted = "--steps: needs N, each a whole number from 1 to 100, not ";
  for (const char* text : {"0", "101", "-1", "1.5", "1e2", "x", "3x", " 3", "0x10", "99999999999999999999"})
    EXPECT_EQ(complaint({"turn", "--steps", text}), wanted + "'" + text + "': see prog turn --help");
}

TEST(CommandLine, TakesFiniteNumbers) {
  for (const char* text : {"nan", "inf", "-inf", "1e999", "x", "1.5x"})
    EXPECT_EQ(complaint({"turn", "--speed", text}),
              std::string("--speed: must be a finite number, not '") + text + "': see prog turn --help");
}

TEST(CommandLine, TakesListsOfTheRightLength) {
  for (const char* text : {"1", "1,2,3", "1,", ",1", "1,,2", "1;2", "1,x", "1,0", "1, 2", ","})
    EXPECT_EQ(complaint({"turn", "--shape", text}),
              std::string("--shape: needs B,S, each a whole number from 1 to 2147483647, not '") + text +
                  "': see prog turn --help");
}

TEST(CommandLine, HelpHasSectionsDefaultsAndTheFooter) {
  Program program;
  EXPECT_EQ(program.parse({"turn", "--help"}),
            "Turns\n"
            "\n"
            "Usage: prog turn [OPTION...]\n"
            "\n"
            "How:\n"
            "  --fast       Hurry\n"
            "  --slow       Do not hurry\n"
            "  --steps N    Steps to make (default 3)\n"
            "  --offset N   Where to begin\n"
            "\n"
            "What:\n"
            "  --speed X    Speed (default 1.5)\n"
            "  --scale X    Scale\n"
            "  --out PATH   Directory (default here)\n"
            "  --how WORD   Which way. One of left, right (default left)\n"
            "  --shape B,S  Extents\n"
            "\n"
            "Help:\n"
            "  -h,--help    Print this text and exit\n"
            "\n"
            "Example: prog turn\n");
  EXPECT_EQ(Program().parse({"-h"}),
            "What it is for.\n"
            "\n"
            "Usage: prog COMMAND [OPTION...]\n"
            "\n"
            "Commands (prog COMMAND --help says more):\n"
            "  turn       Turns\n"
            "  stop       Stops\n"
            "\n"
            "Help:\n"
            "  -h,--help  Print this text and exit\n"
            "  --version  Print the version and the instruction set, and exit\n");
  EXPECT_EQ(program.parse({"--version"})->substr(0, 5), "prog ");
}

/// The lines of --help for a flag, without what stands before them.
std::string help_of(const std::string& text, const std::string& flag = "--a") {
  CommandLine words("prog", "");
  bool given = false;
  words.flag(flag, given, text);
  const std::array arguments{"prog", "--help"};
  const std::string help = *words.parse(2, arguments.data());
  const std::size_t begin = help.find("  " + flag);
  return help.substr(begin, help.find("\n\nHelp:") - begin);
}

TEST(HelpText, BreaksLinesAtSpaces) {
  const std::string word(50, 'x'), indent(13, ' ');
  EXPECT_EQ(help_of(word + " " + word + " " + word),
            "  --a        " + word + "\n" + indent + word + "\n" + indent + word);
}

TEST(HelpText, KeepsLineEndsAndIndents) {
  EXPECT_EQ(help_of("one\n  two three\nfour"), "  --a        one\n  two three\nfour");
}

TEST(HelpText, KeepsAWordThatIsTooLong) {
  const std::string word(200, 'x');
  EXPECT_EQ(help_of(word), "  --a        " + word);
}

TEST(HelpText, AlignsTexts) {
  EXPECT_EQ(help_of("short"), "  --a        short");
  EXPECT_EQ(help_of("other", "--much-longer"), "  --much-longer  other");
}

TEST(CommandLine, HelpComesBeforeComplaints) {
  EXPECT_TRUE(Program().parse({"turn", "--steps", "x", "--help"}));
}

TEST(CommandLine, SettingsAreEqualWhenTheFlagsAre) {
  const auto settings = [](const std::vector<const char*>& arguments) {
    Program program;
    EXPECT_FALSE(program.parse(arguments));
    return program.words.settings();
  };
  EXPECT_EQ(settings({"turn", "--fast", "--steps", "7"}), settings({"turn", "--steps", "7", "--fast"}));
  EXPECT_NE(settings({"turn", "--steps", "7"}), settings({"turn", "--steps", "8"}));
  EXPECT_NE(settings({"turn"}), settings({"stop"}));
  EXPECT_EQ(settings({"turn"}).front(), (std::pair<std::string, std::string>("the command", "prog turn")));
}

// A command with options of its own may have a command; each has its options alone.
TEST(CommandLine, ACommandOfACommand) {
  struct Nested : Program {
    CommandLine& back = turn.command("back", "Turns back");
    Index far = 1;
    Nested() { back.option("--far", far, "How far"); }
  };
  Nested program;
  EXPECT_FALSE(program.parse({"turn", "back", "--far", "2"}));
  EXPECT_TRUE(program.turn.chosen() && program.back.chosen());
  EXPECT_EQ(program.far, 2);
  EXPECT_EQ(program.words.settings()[0].second, "prog turn back");
  Nested plain;
  EXPECT_FALSE(plain.parse({"turn", "--fast"}));
  EXPECT_TRUE(plain.turn.chosen() && !plain.back.chosen());
  const auto refused = [](const std::vector<const char*>& arguments) {
    Nested other;
    return input_error([&] { (void)other.parse(arguments); });
  };
  EXPECT_EQ(refused({"turn", "--fast", "back"}), "back excludes --fast: see prog turn back --help");
  EXPECT_EQ(refused({"turn", "back", "--fast"}),
            "The following argument was not expected: --fast: see prog turn back --help");
  EXPECT_EQ(refused({"turn", "back", "--far", "0"}).find("--far"), 0);
  const std::string help = *Nested().parse({"turn", "--help"});
  EXPECT_NE(help.find("Usage: prog turn [COMMAND] [OPTION...]"), std::string::npos);
  EXPECT_NE(Nested().parse({"turn", "back", "--help"})->find("Usage: prog turn back [OPTION...]"),
            std::string::npos);
}

}  // namespace
}  // namespace ring_attention::test
