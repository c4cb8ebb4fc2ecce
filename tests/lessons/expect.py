"""Checks of a script, a line for each, and its exit code."""

import sys

failures = []


def expect(holds, what, seen=()):
    """:param seen: lines that are printed where it does not hold"""
    print(f"{'ok  ' if holds else 'FAIL'} {what}", flush=True)
    if not holds:
        failures.append(what)
        print("", *seen, sep="\n  ", flush=True)


def finish():
    print(f"{len(failures)} failures")
    sys.exit(1 if failures else 0)
