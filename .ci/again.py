#!/usr/bin/env python3
"""ctest, without what has passed already: again.py BUILD FLAG... The FLAGs are ctest's.

BUILD/tests.xml is the JUnit file of a run before more was built. A compiled test that passed in it, left nothing out and
has not been linked since does not run again.
"""
import json
import os
import pathlib
import subprocess
import sys
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import not_run  # noqa: E402

COMPILED = {"unit", "mpi", "plain_mpi"}


def passed_whole(results):
    """The tests that have passed and have left nothing out."""
    for case in xml.etree.ElementTree.parse(results).iter("testcase"):
        if case.get("status") == "run" and not list(not_run.reasons(case.findtext("system-out") or "")):
            yield case.get("name")


def is_older(test, build, results):
    """Have the programs of a test been linked before the run?"""
    words = [pathlib.Path(word) for word in test["command"]]
    programs = [word for word in words if build in word.parents and word.exists()]
    return all(program.stat().st_mtime < results.stat().st_mtime for program in programs)


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    results = build / "tests.xml"
    passed = set(passed_whole(results))
    listed = subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1"], stdout=subprocess.PIPE, check=True)
    again = []
    for number, test in enumerate(json.loads(listed.stdout)["tests"], 1):
        labels = {label for one in test["properties"] if one["name"] == "LABELS" for label in one["value"]}
        if not (test["name"] in passed and labels <= COMPILED and is_older(test, build, results)):
            again.append(str(number))
    print(f"again: {number - len(again)} of {number} tests have passed before, and their programs are the same", flush=True)
    os.execvp("ctest", ["ctest", "--test-dir", str(build), "--tests-information", ",".join(["0,0,0", *again]), *sys.argv[2:]])


main()
