"""Mistakes as edits of the project's own source, each with the test that has to fail: the rows of mutants.tsv.

    mutants.py --check                        each text stands exactly once in its file, and each test is there
    mutants.py [NAME...]                      plants each row, and says how long it took and what killed it, or SURVIVES
    mutants.py --changed BASE --minutes 5     those whose file or test differs from a commit, as long as there is time

A row: name, file, text, replacement, test. `\\n`, `\\t` and `\\\\` are escapes. The test is a name of CTest (unit.cpu.value_dim_test),
whose program alone is built, or a script (tests/diagnose/diagnosis_test.py), which builds nothing: a script of the package
ring_attention takes the compiled module of RING_ATTENTION_BUILD (build/release). All happens in a copy of the checkout, in
build/mutants. A test has to pass there without a mistake first.
"""

import argparse
import csv
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import check

ROOT, COPY = check.ROOT, check.ROOT / "build/mutants"
BUILD = COPY / "build/release"
COMPILED = Path(os.environ.get("RING_ATTENTION_BUILD") or ROOT / "build/release").resolve()
CONFIGURE = ["cmake", "--preset", "release", "-DRING_ATTENTION_CUDA=OFF", "-DCMAKE_UNITY_BUILD=ON", "-DRING_ATTENTION_TESTS=ON",
             *(["-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else [])]
SKIPPED = 77  # the exit code of a script
deadline = float("inf")  # of --minutes


def rows():
    with open(Path(__file__).with_suffix(".tsv"), encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def unescaped(text):
    return re.sub(r"\\([nt\\])", lambda found: {"n": "\n", "t": "\t"}.get(found[1], "\\"), text)


def source_of(test):
    """The file of a test of CTest, or of a script. A number behind the name is a part of the file."""
    if "/" in test:
        return test
    kind, *words = re.sub(r"\.(np)?\d+$", "", test).split(".")
    return f"tests/{'/'.join(words)}.cpp" if kind in ("unit", "mpi", "long") else f"tests/{kind}/{'.'.join(words)}_test.py"


def faults():
    names, found = set(), []
    for row in rows():
        file = ROOT / (row["file"] or "none")
        times = file.read_text(encoding="utf-8").count(unescaped(row["text"])) if file.is_file() and row["text"] else -1
        if times != 1:
            found.append(f"{row['name']}: its text stands {times} times in {row['file']}" if times >= 0 else f"{row['name']}: no text")
        if not row["test"] or not (ROOT / source_of(row["test"])).is_file():
            found.append(f"{row['name']}: there is no test {row['test']}")
        if row["name"] in names or row["text"] == row["replacement"]:
            found.append(f"{row['name']}: twice, or it changes nothing")
        names.add(row["name"])
    return found


def files_below(top):
    for folder, folders, names in os.walk(top):
        folders[:] = [name for name in folders if name != "__pycache__" and (folder != str(top) or name not in ("build", ".git"))]
        yield from (Path(folder, name).relative_to(top) for name in names)


def copy_checkout():
    """A file that differs gets a new time, so that make sees it; one that a mistake was left in, too."""
    for path in list(files_below(COPY)):
        if not (ROOT / path).exists():
            (COPY / path).unlink()
    for path in files_below(ROOT):
        if not (COPY / path).exists() or (COPY / path).read_bytes() != (ROOT / path).read_bytes():
            (COPY / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, COPY / path)


class OutOfTime(Exception):
    """The minutes that were given are over."""


def run(command, limit=1800, **environment):
    """(exit code, text); whatever it has started ends with it, also on Ctrl-C."""
    left = deadline - time.monotonic()
    process = subprocess.Popen(list(map(str, command)), cwd=COPY, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
                               env={**os.environ, **environment})
    try:
        text, _ = process.communicate(timeout=max(0, min(limit, left)))
        return process.returncode, text
    except subprocess.TimeoutExpired:
        if left < limit:
            raise OutOfTime from None
        return 124, f"took more than {limit} s"
    finally:
        for number, patience in ((signal.SIGTERM, 5), (signal.SIGKILL, None)):  # make removes what it has not finished
            try:
                os.killpg(process.pid, number)
                process.wait(patience)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                pass


def package_with_copy():
    """A folder like that of a build, whose package is the copy's source with the module that was compiled."""
    build = BUILD.with_name("package")
    shutil.rmtree(build / "python", ignore_errors=True)
    shutil.copytree(COPY / "src/python", build / "python")
    for module in (COMPILED / "python/ring_attention").glob("_core.*.so"):
        (build / "python/ring_attention" / module.name).symlink_to(module)
    return build


def run_script(script):
    cache = COMPILED / "CMakeCache.txt"  # the Python for which the module is built, and which has NumPy
    python = re.search(r"^Python_EXECUTABLE:\w+=(.+)", cache.read_text() if cache.exists() else "", re.MULTILINE)
    return run([python[1] if python else sys.executable, script], PYTHONDONTWRITEBYTECODE="1", RING_ATTENTION_SOURCE=str(COPY),
               RING_ATTENTION_BUILD=str(package_with_copy()), MPIRUN=os.environ.get("MPIRUN") or str(COMPILED / "mpirun"))


def run_program(test):
    """Builds what the test needs, and runs it."""
    if not (BUILD / "CTestTestfile.cmake").exists():
        code, text = run(CONFIGURE)
        if code:
            sys.exit(f"mutants: {' '.join(CONFIGURE)} failed in {COPY}\n{text}")
    choice = check.Choice([test])
    choice.add_file(source_of(test))
    jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", os.cpu_count())
    code, text = run(["cmake", "--build", BUILD, "--parallel", jobs, "--target", *sorted(choice.targets), "test_yield_while_waiting"])
    if code:
        return "does not compile: " + next((line for line in text.splitlines() if re.search("error|undefined", line)), text[-300:])
    return run(["ctest", "--test-dir", BUILD, "--output-on-failure", "--no-tests=error", "-R", rf"^{re.escape(test)}(\.[0-9]+)?$"])


def outcome(test):
    """"passed", "skipped: ...", "does not compile: ...", or what failed."""
    done = run_script(test) if "/" in test else run_program(test)
    if isinstance(done, str):
        return done
    code, text = done
    if code == SKIPPED or (code == 0 and "(Skipped)" in text):
        return "skipped: " + next((line for line in text.splitlines() if line.startswith("skipped")), test)
    if code == 0:
        return "passed"
    for pattern in (r"\[  FAILED  \] (\w[\w/]*\.[\w/]+)", r": in (\w[\w/]*\.[\w/]+): ", r"^(?:FAIL|ERROR): (\w+)",
                    r"\*\*\*(?:Exception: )?(\w+)"):
        if found := re.search(pattern, text, re.MULTILINE):
            return found[1]
    return f"exit code {code}"


def planted(row):
    file = COPY / row["file"]
    right = file.read_text(encoding="utf-8")
    try:
        file.write_text(right.replace(unescaped(row["text"]), unescaped(row["replacement"])), encoding="utf-8")
        return outcome(row["test"])
    finally:
        file.write_text(right, encoding="utf-8")


def tried(row, without):
    """What is said of a row. `without`: the outcomes of tests without a mistake, so far."""
    test = row["test"]
    if test not in without:
        without[test] = outcome(test)
    if without[test].startswith("skipped"):
        return without[test]
    if without[test] != "passed":
        return f"FAILS WITHOUT IT: {test}: {without[test]}"
    said = planted(row)
    return "SURVIVES" if said == "passed" else said if said.startswith(("does not", "skipped")) else f"killed by {test}: {said}"


def plant(some):
    """Prints a line for each. \returns the exit code"""
    copy_checkout()
    without, bad, left = {}, 0, []
    for row in sorted(some, key=lambda row: ("/" not in row["test"], row["test"])):  # those without a build first
        begin = time.monotonic()
        try:
            said = tried(row, without)
        except OutOfTime:
            left.append(row["name"])
            continue
        bad += not said.startswith(("killed", "skipped"))
        print(f"{time.monotonic() - begin:6.0f} s  {row['name']:36} {said}", flush=True)
    if left:
        print(f"not tried, for want of time: {', '.join(left)}")
    return 1 if bad else 0


def main():
    global deadline
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="these rows, not all")
    parser.add_argument("--check", action="store_true", help="plant nothing")
    parser.add_argument("--changed", metavar="BASE", help="rows whose file or test differs from that commit")
    parser.add_argument("--minutes", type=float, default=deadline, help="what is not done by then is said")
    words, all_rows, found = parser.parse_args(), rows(), faults()
    print("\n".join(found) or f"{len(all_rows)} mistakes: each text stands once in its file")
    if found or words.check:
        return 1 if found else 0
    if unknown := set(words.names) - {row["name"] for row in all_rows}:
        parser.error(f"no row has the name {', '.join(sorted(unknown))}")
    some = [row for row in all_rows if not words.names or row["name"] in words.names]
    if words.changed:
        os.environ["SINCE"] = words.changed
        try:
            changed = set(check.changed())
        except subprocess.CalledProcessError:
            parser.error(f"git knows no commit {words.changed}")
        some = [row for row in some if {row["file"], source_of(row["test"])} & changed]
    print(f"{len(some)} to be planted", flush=True)
    deadline = time.monotonic() + 60 * words.minutes
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("mutants: ended"))  # as Ctrl-C: what it has started ends, too
    return plant(some)


if __name__ == "__main__":
    sys.exit(main())
