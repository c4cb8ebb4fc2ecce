"""`make check`: builds and runs what a change touches, and nothing else. check.py [--list] BUILD [FILE...]

Files: those that are given, or what git says has changed since the last commit (SINCE=COMMIT: since that one). --list only
prints what would be built and run.

    a file of the library    the unit tests of its folder that include its header, or all of that folder, and a short choice
                             of the conformance suite; the lessons that include the header themselves
    a test                   itself; a header of tests: what includes it, the unit tests of three folders at most
    a lesson                 its program
    the Python packages      the Python tests that name the module
    program, cli             the unit tests of the folder, and the test of the command, or of `run`
    a page                   the test of the links
"""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Each device, team, mask and term of the conformance suite, which sees to it, at least once.
SHORT_CONFORMANCE = {"RING_ATTENTION_EVERY": "5", "GTEST_FILTER": "*EveryDeviceWithEveryMask"}


def text(path):
    return (ROOT / path).read_text(encoding="utf-8", errors="replace")


def files(*patterns):
    return [path.relative_to(ROOT).as_posix() for pattern in patterns for path in ROOT.glob(pattern)]


def changed():
    def git(*words):
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()

    found = git("diff", "--name-only", os.environ.get("SINCE") or "HEAD") + git("ls-files", "-o", "--exclude-standard")
    return [file for file in found if (ROOT / file).exists()]


def included_by(file):
    """What a C++ file of tests or lessons includes, also by their own headers."""
    seen, todo = set(), [file]
    while todo:
        here = todo.pop()
        for name in re.findall(r'#include "([^"]+)"', text(here)):
            for path in (f"tests/{name}", f"lessons/{name}", f"{here.rpartition('/')[0]}/{name}"):
                if path not in seen and (ROOT / path).is_file():
                    todo.append(path)
                    seen.add(path)
            seen.add(name)
    return seen


class Choice:
    """Targets to build, names of CTest to run, and whether the conformance suite is run."""

    def __init__(self, names):
        self.names, self.targets, self.tests, self.conformance = names, set(), set(), False

    def add(self, target, pattern):
        """Tests that fit the pattern, of the target's program. Long ones are left out."""
        found = {name for name in self.names if re.fullmatch(pattern, name)}
        if found and target:
            self.targets.add(target)
        self.tests |= found
        return found

    def add_source_of_test(self, file):
        folder, name = file.split("/")[1], file.removeprefix("tests/").removesuffix(".cpp").replace("/", ".")
        self.add(f"test_{folder}", rf"unit\.{name}(\.\d)?")
        self.add(f"test_{folder}_mpi", rf"mpi\.{name}\.np[13]")

    def add_library(self, file):
        header = re.sub(r"\.(cpp|cu)$", ".hpp", file).removeprefix("src/")
        folder = file.split("/")[2 if file.startswith("src/ring_attention/") else 1]
        own = files(f"tests/{folder}/**/*_test.cpp")
        reach = [test for test in own if header in included_by(test)] or own
        for test in reach:
            name = test.removeprefix("tests/").removesuffix(".cpp").replace("/", ".")
            self.add_source_of_test(test) if header in text(test) else self.add(f"test_{folder}", rf"unit\.{name}(\.\d)?")
        self.conformance |= file.startswith("src/ring_attention/") and folder != "cuda"
        for lesson in sorted({other.split("/")[1] for other in files("lessons/[0-9]*/*.?pp") if f'"{header}"' in text(other)}):
            self.add(f"lesson_{lesson}", rf"lesson\.{lesson}")

    def add_python(self, file):
        """Scripts of tests that name the module, or those of the package."""
        package, stem = file.split("/")[2], Path(file).stem
        folder = "diagnose" if package == "ring_attention_diagnose" else "python"
        scripts = files(f"tests/{folder}/*_test.py")
        word = stem.lstrip("_").rstrip("s")
        named = [script for script in scripts if re.search(rf"\b_?{word}s?\b", text(script) + script.replace("_test", ""))]
        for script in named or scripts[:2]:
            self.add("ring_attention_python" if folder == "python" else None,
                     rf"{folder}\.{Path(script).stem.removesuffix('_test')}")

    def add_file(self, file):
        part = file.split("/")
        if file.endswith(".md"):
            self.add(None, r"docs\.links")
        elif file.startswith("tests/") and file.endswith("_test.cpp"):
            self.add_source_of_test(file)
        elif file.startswith("tests/") and file.endswith(("_test.py", "_test.sh")):
            target = {"cli": "ring-attention", "install": "ring-attention", "python": "ring_attention_python"}.get(part[1])
            self.add(target, rf"{part[1]}\.{part[-1][:-len('_test.py')]}")
        elif file.startswith("tests/") and file.endswith((".hpp", ".cpp")):
            header = file.removeprefix("tests/").replace(".cpp", ".hpp")
            reach = [test for test in files("tests/*/**/*_test.cpp") if header in included_by(test)]
            for folder in sorted({test.split("/")[1] for test in reach})[:3]:
                self.add(f"test_{folder}", rf"unit\.{folder}\..*")
        elif re.match(r"lessons/\d", file):
            self.add(f"lesson_{part[1]}", rf"lesson\.{part[1]}")
        elif file.startswith("src/python/") and file.endswith(".py"):
            self.add_python(file)
        elif file.startswith("src/python/"):
            self.add("ring_attention_python", r"python\.attention")
        elif re.match(r"src/(program|cli)/", file):
            self.add_library(file)
            words = "|".join(map(re.escape, (*part[2:-1], Path(file).stem)))
            self.add("ring-attention", rf"cli\.({words})") or self.add("ring-attention", r"cli\.results")
        elif file.startswith("src/") and file.endswith((".hpp", ".cpp", ".cu", ".cuh")):
            self.add_library(file)


def main(arguments):
    only_list = arguments[:1] == ["--list"]
    build, *given = arguments[only_list:]
    shown = subprocess.run(["ctest", "--test-dir", build, "--show-only", "--label-exclude", "long"], capture_output=True, text=True)
    choice = Choice(re.findall(r"Test +#\d+: (\S+)", shown.stdout))
    given = given or changed()
    for file in given:
        choice.add_file(file)
    if not given:
        print(f"check: nothing has changed since {os.environ.get('SINCE') or 'the last commit'} (FILES=...; SINCE=COMMIT)")
    if choice.conformance:
        choice.targets.add("test_conformance")
    print("check: builds", ", ".join(sorted(choice.targets)) or "nothing")
    print("check: runs", ", ".join(sorted(choice.tests)) or "no test", "and the short conformance" if choice.conformance else "",
          flush=True)
    if only_list or not choice.targets | choice.tests:
        return 0
    jobs = ["--parallel", str(os.cpu_count())]
    if choice.targets:
        command = ["cmake", "--build", build, *jobs, "--target", *sorted(choice.targets), "test_yield_while_waiting"]
        if subprocess.run(command).returncode:
            print("check: FAILED, it does not compile")
            return 1
    code = 0
    if choice.tests:
        names = "|".join(map(re.escape, sorted(choice.tests)))
        code |= subprocess.run(["ctest", "--test-dir", build, *jobs, "--output-on-failure", "-R", f"^({names})$"]).returncode
    if choice.conformance:
        code |= subprocess.run([f"{build}/tests/conformance/test_conformance", "--gtest_brief=1"],
                               env={**os.environ, **SHORT_CONFORMANCE}).returncode
    print("check: FAILED, see above" if code else "check: passed")
    return 1 if code else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
