"""What a run of the tests has left out on this machine, why, and by which command it is had: `not_run.py RESULTS`, the
JUnit file of ctest.

A test that is skipped says why in its output: "skipped: there is no nm", the words of unittest, pytest or GoogleTest.
With RING_ATTENTION_ALL_TESTS=ON the exit code is 1 if something is left out which `make test` should have run: what is
not in MAY_LACK.
"""

import os
import re
import sys
import xml.etree.ElementTree

REASONS = (
    re.compile(r"skipped (?:['\"]|\[\d+\] \S+: )(.+?)['\"]?$", re.IGNORECASE),  # unittest, pytest
    re.compile(r"\bskipped *[:|] *(.+)", re.IGNORECASE),
    re.compile(r"^(?!\[).*: Skipped$"),  # GoogleTest: the reason is the next line
)

TORCH = "TORCH_PYTHON=/path/to/python make test, with a Python that has it"
MAY_LACK = (  # what `make test` does not install, or cannot: a pattern of the reason, and how it is had
    (r"doxygen", "sh setup.sh docs; make test"),
    (r"browser", "sh setup.sh browser; make test"),
    (r"make lessons-module", ""),  # which loads 100 MB and compiles the library again
    (r"import .*matplotlib", "sh setup.sh notebooks; make test"),
    (r"headers of CUDA|emulated GPU", "sh setup.sh gpu-headers; make test"),
    (r"no CUDA|no GPU|without the GPU parts|no NVIDIA|needs? Hopper", "a GPU, or nvcc to compile the kernels (docs/gpu.md)"),
    (r"torch|transformers|JAX", TORCH),
    (r"mpi4py", "python3 -m pip install --target FOLDER mpi4py; MPI4PY_FOLDER=FOLDER make test"),
    (r"benchmark programs", "sh setup.sh bench; make bench"),
    (r"emulator is too slow|make test-long|root may|need Linux and root|no network namespaces|slow links", ""),
    (r"small disk|has a GPU", ""),
    (r"even number of ranks|needs \w+ ranks|on two ranks|sparse files|long double|data race|MPICH's", ""),
)


def reasons(output):
    """One for each part of a test that is skipped."""
    lines = [line.strip() for line in output.splitlines()]
    for line, after in zip(lines, [*lines[1:], ""]):
        if REASONS[2].search(line):
            yield after
        elif not line.startswith("[") and (found := REASONS[0].search(line) or REASONS[1].search(line)):
            yield found[1].strip()


def way_to(reason):
    """How a test is had that this reason has left out; None if `make test` should have run it."""
    return next((way for pattern, way in MAY_LACK if re.search(pattern, reason, re.IGNORECASE)), None)


def main():
    left_out = {}
    for case in xml.etree.ElementTree.parse(sys.argv[1]).iter("testcase"):
        found = list(reasons(case.findtext("system-out") or ""))
        if case.find("skipped") is not None and not found:
            found = ["it says no reason"]
        for reason in found:
            left_out.setdefault(reason, []).append(case.get("name"))
    if not left_out:
        return 0
    print("\nNot run here, in whole or in part, why, and what runs it:")
    for reason, names in sorted(left_out.items(), key=lambda entry: entry[1]):
        names = list(dict.fromkeys(names))
        more = f" and {len(names) - 3} more" if len(names) > 4 else ""
        way = way_to(reason)
        print(f"  {', '.join(names[:3] if more else names)}{more}: {reason}{way and f' ({way})' or ''}")
    missing = sum(way_to(reason) is None for reason in left_out)
    if missing and os.environ.get("RING_ATTENTION_ALL_TESTS") == "ON":
        print(f"not_run: {missing} of these reasons are no reason: `make test` has to install what it needs (setup.sh)")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
