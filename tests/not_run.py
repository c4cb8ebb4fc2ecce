"""What a run of the tests has left out on this machine, and why: `not_run.py RESULTS`, the JUnit file of ctest.

A test that is skipped says why in its output: "skipped: there is no nm", the words of unittest or those of GoogleTest.
"""

import re
import sys
import xml.etree.ElementTree

REASONS = (
    re.compile(r"skipped ['\"](.+?)['\"]?$"),  # unittest
    re.compile(r"\bskipped *[:|] *(.+)", re.IGNORECASE),
    re.compile(r"^(?!\[).*: Skipped$"),  # GoogleTest: the reason is the next line
)


def reasons(output):
    """One for each part of a test that is skipped."""
    lines = [line.strip() for line in output.splitlines()]
    for line, after in zip(lines, [*lines[1:], ""]):
        if REASONS[2].search(line):
            yield after
        elif not line.startswith("[") and (found := REASONS[0].search(line) or REASONS[1].search(line)):
            yield found[1].strip()


def main():
    left_out = {}
    for case in xml.etree.ElementTree.parse(sys.argv[1]).iter("testcase"):
        found = list(reasons(case.findtext("system-out") or ""))
        if case.find("skipped") is not None and not found:
            found = ["it says no reason"]
        for reason in found:
            left_out.setdefault(reason, []).append(case.get("name"))
    if not left_out:
        return
    print("\nNot run here, in whole or in part, and why:")
    for reason, names in sorted(left_out.items(), key=lambda entry: entry[1]):
        names = list(dict.fromkeys(names))
        more = f" and {len(names) - 3} more" if len(names) > 4 else ""
        print(f"  {', '.join(names[:3] if more else names)}{more}: {reason}")


if __name__ == "__main__":
    main()
