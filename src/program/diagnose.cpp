#include "program/diagnose.hpp"

#include <spawn.h>
#include <sys/wait.h>

#ifdef __APPLE__
#include <mach-o/dyld.h>
#endif

#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include "ring_attention/core/error.hpp"

extern char** environ;  // NOLINT: no header of macOS has it

namespace ring_attention {
namespace {

namespace fs = std::filesystem;

constexpr int no_numpy = 77;  // the exit code of `starter` and of no other
constexpr const char* starter =
    "import sys\n"
    "sys.path.insert(0, sys.argv.pop(1))\n"
    "try:\n"
    "    import numpy\n"
    "except ImportError:\n"
    "    sys.exit(77)\n"
    "from ring_attention_diagnose.__main__ import main\n"
    "sys.exit(main())\n";

fs::path this_program() {
#ifdef __APPLE__
  std::string path(4096, '\0');
  auto size = static_cast<std::uint32_t>(path.size());
  return _NSGetExecutablePath(path.data(), &size) == 0 ? fs::canonical(path.c_str()) : fs::path();
#else
  return fs::canonical("/proc/self/exe");
#endif
}

/// The folder that has the package: of the build, or of what is installed.
fs::path package_folder() {
  const fs::path here = this_program().parent_path();
  for (const char* folder : {"python", RING_ATTENTION_DATA_FROM_PROGRAM})
    if (fs::exists(here / folder / "ring_attention_diagnose/__main__.py")) return here / folder;
  throw InputError((here / RING_ATTENTION_DATA_FROM_PROGRAM / "ring_attention_diagnose").string(),
                   "is not there", "install the program again");
}

/// The exit code of a program; no_numpy where there is no such program.
int run(std::vector<std::string> words) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  pid_t child = 0;
  if (posix_spawnp(&child, arguments.front(), nullptr, nullptr, arguments.data(), environ) != 0)
    return no_numpy;
  int status = 0;
  while (waitpid(child, &status, 0) < 0)
    if (errno != EINTR) throw Error("diagnose: the exit code of python3 is lost");
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

int diagnose_command(const std::vector<std::string>& words) {
  const std::string folder = package_folder().string();
  setenv("RING_ATTENTION_DIAGNOSE_NAME", "ring-attention diagnose", 1);
  for (const char* python :
       {"python3", "/usr/bin/python3", "/opt/homebrew/bin/python3", "/usr/local/bin/python3"}) {
    std::vector<std::string> all{python, "-c", starter, folder};
    all.insert(all.end(), words.begin(), words.end());
    if (const int code = run(std::move(all)); code != no_numpy && code != 127) return code;
  }
  throw InputError("diagnose", "no python3 has NumPy",
                   "`apt-get install python3-numpy`, or `python3 -m pip install numpy`");
}

}  // namespace ring_attention
