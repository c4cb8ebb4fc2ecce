#!/usr/bin/env python3
"""clang-tidy over the C++ files of build/lint: all of them, or those that a change touches.

    python3 .ci/tidy.py CLANG_TIDY [changed]

`changed` takes the files that differ from the merge base with the default branch; on the default branch itself, from
the last tag. Where there is neither, nothing has changed. A changed header is checked in one file that includes it; one
that only headers and kernels include waits for a call without `changed`.

A file that passes is left out of later calls, until its preprocessed text, the version of clang-tidy or a .clang-tidy
changes. Exit code 0: no findings; 1: findings.
"""
import concurrent.futures
import hashlib
import json
import os
import pathlib
import shlex
import subprocess
import sys
import time

MOST = 20  # files of a change, which take about three minutes on 2 cores
ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build/lint"
PASSED = BUILD / "tidy"
# It includes headers that only a build writes.
LEFT_OUT = {ROOT / "tests/emulator/nccl_waits_test.cpp"}


def output(*command):
    """What a command prints, or '' where it fails."""
    return subprocess.run(command, cwd=ROOT, text=True, errors="replace", stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL).stdout


def commands():
    """The command that compiles each file: one for a file that several targets compile. Files that CMake writes are
    not ours, except the sum of the Python module's files."""
    found = {}
    for entry in json.loads((BUILD / "compile_commands.json").read_text()):
        file = pathlib.Path(entry["file"])
        ours = BUILD not in file.parents or (file.suffix == ".cxx" and "ring_attention_python" in str(file))
        if ours and file.suffix != ".cu" and file not in LEFT_OUT:
            found.setdefault(file, entry)
    return found


def changed_files(known):
    """The files to check after a change, those of the newest commit first."""
    branches = ("origin/HEAD", "origin/main", "main")
    base = next(filter(None, (output("git", "merge-base", "HEAD", branch).strip() for branch in branches)), "")
    if not base or base == output("git", "rev-parse", "HEAD").strip():
        base = output("git", "describe", "--tags", "--abbrev=0").strip()
    if not base:
        return []
    names = output("git", "diff", "--name-only", "HEAD").split()
    names += output("git", "log", "--format=", "--name-only", f"{base}..HEAD").split()
    files = []
    for name in dict.fromkeys(names):
        if name.endswith((".hpp", ".cuh")):
            folder, _, own = name.rpartition("/")
            _, _, from_root = name.partition("/")  # of src, lessons or tests
            users = output("git", "grep", "-lF", f'#include "{from_root}"', "--", "*.cpp").split()
            users += output("git", "grep", "-lF", f'#include "{own}"', "--", f"{folder}/*.cpp").split()
            files += [ROOT / user for user in users if ROOT / user in known][:1]
        elif ROOT / name in known:
            files.append(ROOT / name)
    return list(dict.fromkeys(files))


def key(entry, about):
    """A name for what clang-tidy reads: the text after the preprocessor, with comments, and the checks."""
    command = shlex.split(entry["command"])
    place = command.index("-o")
    command[place:place + 2] = ["-E", "-C"]
    text = subprocess.run(command, cwd=entry["directory"], stdout=subprocess.PIPE, check=True).stdout
    checks = [folder / ".clang-tidy" for folder in pathlib.Path(entry["file"]).parents]
    about += b"".join(path.read_bytes() for path in checks if path.exists())
    return hashlib.sha256(about + entry["file"].encode() + text).hexdigest()


def check(clang_tidy, entry, about):
    """Checks one file, and prints what it finds."""
    stamp = PASSED / key(entry, about)
    if stamp.exists():
        return True
    run = subprocess.run([clang_tidy, "-p", str(PASSED), "--quiet", entry["file"]], text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if run.returncode:
        print(run.stdout or run.stderr, flush=True)
        return False
    stamp.touch()
    return True


def main():
    clang_tidy = sys.argv[1]
    begin = time.monotonic()
    PASSED.mkdir(exist_ok=True)
    entries = commands()
    (PASSED / "compile_commands.json").write_text(json.dumps(list(entries.values())))
    files = sorted(entries)
    if "changed" in sys.argv[2:]:
        files = changed_files(entries)
        if len(files) > MOST:
            print(f"lint: {len(files)} files are changed; the newest {MOST} are checked here, all by `make lint`")
            files = files[:MOST]
    about = output(clang_tidy, "--version").encode()
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        passed = list(pool.map(lambda file: check(clang_tidy, entries[file], about), files))
    print(f"lint: {passed.count(False)} of {len(files)} C++ files have findings ({time.monotonic() - begin:.0f} s)")
    sys.exit(0 if all(passed) else 1)


main()
