"""Mistakes as edits of the project's own source, each with the test that has to fail: the rows of mutants.tsv.

    mutants.py --check                        each text stands exactly once in its file, and each test is there
    mutants.py [NAME...]                      plants each row, and says how long it took and what killed it, or SURVIVES
    mutants.py --changed BASE [--minutes M]   those whose file or test differs from a commit, as long as there is time

A row: name, file, text, replacement, test. `\\n` and `\\t` are escapes. The test is a name of CTest (unit.cpu.value_dim_test),
whose program alone is built, or a script (tests/diagnose/diagnosis_test.py), which builds nothing: a script of the package
ring_attention takes the compiled module of RING_ATTENTION_BUILD (build/release). All happens in a copy of the checkout, in
build/mutants. A test has to pass there without a mistake first.
"""

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


def rows():
    with open(Path(__file__).with_suffix(".tsv"), encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def unescaped(text):
    return text.replace("\\n", "\n").replace("\\t", "\t")


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


def copy_checkout():
    """A file that differs gets a new time, so that make sees it; one that a mistake was left in, too."""
    def is_left_out(path):
        return path.parts[0] in ("build", ".git") or "__pycache__" in path.parts

    for top, there in ((ROOT, True), (COPY, False)):
        for file in sorted(top.rglob("*")) if top.is_dir() else ():
            path = file.relative_to(top)
            if is_left_out(path) or not file.is_file():
                continue
            if not there and not (ROOT / path).exists():
                file.unlink()
            elif there and (not (COPY / path).exists() or (COPY / path).read_bytes() != file.read_bytes()):
                (COPY / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, COPY / path)


def run(command, limit=1800, **environment):
    """(exit code, text); whatever it has started ends with it, also on Ctrl-C."""
    process = subprocess.Popen(list(map(str, command)), cwd=COPY, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
                               env={**os.environ, **environment})
    try:
        text, _ = process.communicate(timeout=limit)
        return process.returncode, text
    except subprocess.TimeoutExpired:
        return 124, f"took more than {limit} s"
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()


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
        return "does not compile: " + next((line for line in text.splitlines() if "error" in line), text[-300:])
    return run(["ctest", "--test-dir", BUILD, "--output-on-failure", "--no-tests=error", "-R", f"^{re.escape(test)}$"])


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
    failed = re.search(r"\[  FAILED  \] (\w[\w/]*\.[\w/]+)|^(?:FAIL|ERROR): (\w+)", text, re.MULTILINE)
    return next(filter(None, failed.groups())) if failed else f"exit code {code}"


def planted(row):
    file = COPY / row["file"]
    right = file.read_text(encoding="utf-8")
    try:
        file.write_text(right.replace(unescaped(row["text"]), unescaped(row["replacement"])), encoding="utf-8")
        return outcome(row["test"])
    finally:
        file.write_text(right, encoding="utf-8")


def plant(some, minutes):
    """Prints a line for each. \returns the exit code"""
    copy_checkout()
    begin, without, bad, left = time.monotonic(), {}, 0, []
    for row in sorted(some, key=lambda row: ("/" not in row["test"], row["test"])):  # those without a build first
        at = time.monotonic()
        if at - begin > 60 * minutes:
            left.append(row["name"])
            continue
        if row["test"] not in without:
            without[row["test"]] = outcome(row["test"])
        said = without[row["test"]]
        if said == "passed":
            said = planted(row)
            said = "SURVIVES" if said == "passed" else said if ": " in said else f"killed by {row['test']}: {said}"
        elif not said.startswith("skipped"):
            said = f"FAILS WITHOUT IT: {row['test']}: {said}"
        bad += not said.startswith(("killed", "skipped"))
        print(f"{time.monotonic() - at:6.0f} s  {row['name']:32} {said}", flush=True)
    if left:
        print(f"not tried, for want of time: {len(left)} rows: {', '.join(left)}")
    return 1 if bad else 0


def main(words):
    found = faults()
    print("\n".join(found) or f"{len(rows())} mistakes: each text stands once in its file")
    if found or words == ["--check"]:
        return 1 if found else 0
    minutes, some = float("inf"), rows()
    if "--minutes" in words:
        at = words.index("--minutes")
        minutes = float(words[at + 1])
        del words[at:at + 2]
    if words[:1] == ["--changed"]:
        os.environ["SINCE"] = words[1]
        changed = set(check.changed())
        some = [row for row in some if {row["file"], source_of(row["test"])} & changed]
    elif words:
        some = [row for row in some if row["name"] in words]
    print(f"{len(some)} to be planted", flush=True)
    return plant(some, minutes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
