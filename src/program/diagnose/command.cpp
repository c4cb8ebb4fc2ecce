#include "program/diagnose/command.hpp"

#include <unistd.h>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "diagnose/report.hpp"
#include "program/diagnose/files.hpp"
#include "ring_attention/core/error.hpp"

namespace ring_attention {

int diagnose_command(const DiagnoseOptions& options) {
  if (options.directory.empty())
    throw InputError("diagnose", "no directory",
                     "`diagnose cases --out DIR` makes one, `diagnose DIR` reads it");
  const diagnose::Submission submission = read_submission(options.directory);
  const bool shows_progress = isatty(STDERR_FILENO) == 1;
  diagnose::Options how;
  how.progress = [=](const std::string& line) {
    if (shows_progress) std::fprintf(stderr, "\r%s ", line.c_str());
  };
  const diagnose::Diagnosis diagnosis = diagnose::diagnose(submission.answers, how);
  if (shows_progress) std::fputs("\r", stderr);
  const std::string answer =
      options.json ? nlohmann::ordered_json::parse(to_json(diagnosis, submission)).dump(2) + "\n"
                   : to_text(diagnosis, submission);
  std::fputs(answer.c_str(), stdout);
  return diagnosis.right() ? 0 : 1;
}

int diagnose_cases_command(const DiagnoseCasesOptions& options) {
  write_cases(options);
  for (const diagnose::Case& one : options.cases())
    std::printf("%s/%s: %s\n", options.out.c_str(), one.name.c_str(), one.tests.c_str());
  std::printf(
      "%s/cases.json says what to compute. Your code writes out.npy (and lse, dq, dk, dv) beside q.npy.\n",
      options.out.c_str());
  return 0;
}

}  // namespace ring_attention
