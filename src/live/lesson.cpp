// A lesson's program in a page: an instance of this module is one of its ranks. The page writes the command line to text() and calls
// run() on each.
#include "live/lesson.hpp"

#include <mpi.h>

#include <cstdio>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace {

std::string words;  // NOLINT: the page writes it

std::map<std::string, LessonMain*>& programs() {
  static std::map<std::string, LessonMain*> all;
  return all;
}

}  // namespace

OfferedLesson::OfferedLesson(const char* name, LessonMain* program) { programs()[name] = program; }

/// Where the page writes a line each for the number of ranks, the lesson, and its flags.
extern "C" __attribute__((export_name("text"))) char* lesson_text(int size) {
  words.resize(static_cast<std::size_t>(size));
  return words.data();
}

/// Returns the exit code.
extern "C" __attribute__((export_name("run"))) int lesson_run(int rank) {
  std::istringstream lines(words);
  std::vector<std::string> line;
  for (std::string one; std::getline(lines, one);) line.push_back(one);
  page_rank = rank;
  page_ranks = std::stoi(line.at(0));
  std::vector<char*> arguments;
  for (std::size_t i = 1; i < line.size(); ++i) arguments.push_back(line[i].data());
  arguments.push_back(nullptr);
  const int code = programs().at(line.at(1))(static_cast<int>(line.size()) - 1, arguments.data());
  std::fflush(nullptr);
  return code;
}
