"""Mistakes as edits of the project's own source, each with the test that has to fail: the rows of mutants.tsv.

    mutants.py --check                        each text stands exactly once in its file, and each test is there
    mutants.py [NAME...]                      plants each row, and says how long it took and what killed it, or SURVIVES
    mutants.py --changed BASE --minutes 5     those whose file or test differs from a commit, as long as there is time

A row: name, file, text, replacement, test. `\\n`, `\\t` and `\\\\` are escapes. The test is a name of CTest (unit.cpu.value_dim_test),
whose program alone is built, or a script with its arguments (tests/diagnose/diagnosis_test.py), for which nothing is built but
the module of Python, once. A test has to pass without a mistake first.

The mistake is in the checkout itself and in build/release (RING_ATTENTION_BUILD: another folder) for as long as its test
runs: nothing else may be built there meanwhile. Whatever ends this, the text comes back, after a kill -9 by the next call.
What was built with a mistake is built again at the end.
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

ROOT = check.ROOT
BUILD = Path(os.environ.get("RING_ATTENTION_BUILD") or ROOT / "build/release").resolve()
RIGHT = ROOT / "build/mutants/right"  # the right text of a file that has a mistake now
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
        return test.split()[0]
    kind, *words = re.sub(r"\.(np)?\d+$", "", test).split(".")
    if kind in ("unit", "mpi", "long"):
        return f"tests/{'/'.join(words)}.cpp"
    script = f"tests/{kind}/{'.'.join(words)}_test"
    return script + (".sh" if (ROOT / f"{script}.sh").is_file() else ".py")


def targets_of(test):
    """What the build makes for a test of CTest."""
    choice = check.Choice([test])
    choice.add_file(source_of(test))
    return choice.targets


def faults():
    names, found = set(), []
    for row in rows():
        file = ROOT / (row["file"] or "none")
        times = file.read_text(encoding="utf-8").count(unescaped(row["text"])) if file.is_file() and row["text"] else -1
        if times != 1:
            found.append(f"{row['name']}: its text stands {times} times in {row['file']}" if times >= 0 else f"{row['name']}: no text")
        if not row["test"] or not (ROOT / source_of(row["test"])).is_file():
            found.append(f"{row['name']}: there is no test {row['test']}")
        elif "/" not in row["test"] and not targets_of(row["test"]):
            found.append(f"{row['name']}: nothing is built for {row['test']}")
        if row["name"] in names or row["text"] == row["replacement"]:
            found.append(f"{row['name']}: twice, or it changes nothing")
        names.add(row["name"])
    return found


def put_back():
    """The new time makes a build see it."""
    for path in [path for path in RIGHT.rglob("*") if path.is_file()]:
        shutil.copyfile(path, ROOT / path.relative_to(RIGHT))
        path.unlink()


class OutOfTime(Exception):
    """The minutes that were given are over."""


def run(command, limit=1800, **environment):
    """(exit code, text); whatever it has started ends with it, also on Ctrl-C."""
    left = deadline - time.monotonic()
    process = subprocess.Popen(list(map(str, command)), cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
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


def package():
    """A folder like that of a build, whose package is the source with the module that was compiled."""
    build = ROOT / "build/mutants/package"
    shutil.rmtree(build / "python", ignore_errors=True)
    shutil.copytree(ROOT / "src/python", build / "python")
    for module in (BUILD / "python/ring_attention").glob("_core.*.so"):
        (build / "python/ring_attention" / module.name).symlink_to(module)
    return build


def run_script(words):
    cache = BUILD / "CMakeCache.txt"  # the Python for which the module is built, and which has NumPy
    python = re.search(r"^Python_EXECUTABLE:\w+=(.+)", cache.read_text() if cache.exists() else "", re.MULTILINE)
    script, *arguments = words.split()
    program = ["sh"] if script.endswith(".sh") else [python[1] if python else sys.executable, "tests/script.py"]
    return run([*program, script, *arguments], PYTHONDONTWRITEBYTECODE="1", RING_ATTENTION_SOURCE=str(ROOT),
               RING_ATTENTION_BUILD=str(package() if script.startswith("tests/python/") else BUILD),
               MPIRUN=os.environ.get("MPIRUN") or str(BUILD / "mpirun"))


def build_for(tests):
    """(exit code, text) of building what tests of CTest need."""
    targets = {"test_yield_while_waiting"}.union(*map(targets_of, tests))
    return run(["cmake", "--build", BUILD, "--parallel", os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", os.cpu_count()),
                "--target", *sorted(targets)])


def run_program(test):
    """Builds what the test needs, and runs it up to its first failure."""
    code, text = build_for([test])
    if "No rule to make target" in text:
        return f"skipped: this build has no {test}"
    if code:
        return "does not compile: " + next((line for line in text.splitlines() if re.search("error|undefined", line)), text[-300:])
    short = check.SHORT_CONFORMANCE if test.startswith("unit.conformance.") else {}
    return run(["ctest", "--test-dir", BUILD, "--output-on-failure", "--no-tests=error", "-R", rf"^{re.escape(test)}(\.[0-9]+)?$"],
               GTEST_FAIL_FAST="1", **short)


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
    file, kept = ROOT / row["file"], RIGHT / row["file"]
    right = file.read_text(encoding="utf-8")
    kept.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, kept)
    try:
        file.write_text(right.replace(unescaped(row["text"]), unescaped(row["replacement"])), encoding="utf-8")
        return outcome(row["test"])
    finally:
        put_back()


def instructions_missing(name):
    """Those of x86 that a row's name has, such as avx512, and this processor has not."""
    processor = Path("/proc/cpuinfo")
    here = processor.read_text() if processor.exists() else ""
    return [word for word in ("avx2", "avx512") if word in name.split("-") and word not in here]


def tried(row, without):
    """What is said of a row. `without`: the outcomes of the tests without a mistake."""
    test = row["test"]
    if missing := instructions_missing(row["name"]):
        return f"skipped: this processor has no {missing[0]}"
    if without[test].startswith("skipped"):
        return without[test]
    if without[test] != "passed":
        return f"FAILS WITHOUT IT: {test}: {without[test]}"
    said = planted(row)
    return "SURVIVES" if said == "passed" else said if said.startswith(("does not", "skipped")) else f"killed by {test}: {said}"


def plant(some):
    """Prints a line for each. \returns the exit code"""
    global deadline
    programs = {row["test"] for row in some if "/" not in row["test"]}
    without, bad, left, built = {}, 0, [], set()
    if any(row["test"].startswith("tests/python/") for row in some):
        build_for(["python.group"])
    # Those without a build first, then file by file: the next mistake in it takes the place of the one before.
    for row in sorted(some, key=lambda row: ("/" not in row["test"], row["file"], row["test"])):
        begin = time.monotonic()
        try:
            if row["test"] in programs and not programs & set(without):
                build_for(programs)
            for test in programs if row["test"] in programs else {row["test"]}:
                if test not in without:
                    without[test] = outcome(test)
            built |= programs & {row["test"]}
            said = tried(row, without)
        except OutOfTime:
            left.append(row["name"])
            continue
        bad += not said.startswith(("killed", "skipped"))
        print(f"{time.monotonic() - begin:6.0f} s  {row['name']:36} {said}", flush=True)
    if left:
        print(f"not tried, for want of time: {', '.join(left)}")
    deadline = float("inf")
    built = {test for test in built if without.get(test) == "passed"}
    if built and build_for(built)[0]:
        print("what was built with a mistake was not built again", file=sys.stderr)
        bad += 1
    return 1 if bad else 0


def main():
    global deadline
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="these rows, not all")
    parser.add_argument("--check", action="store_true", help="plant nothing")
    parser.add_argument("--changed", metavar="BASE", help="rows whose file or test differs from that commit")
    parser.add_argument("--minutes", type=float, default=deadline, help="what is not done by then is said")
    words, all_rows = parser.parse_args(), rows()
    if not words.check:
        put_back()  # after a kill -9
    found = faults()
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
