"""Checks the models with spin: every property holds, every seeded mistake is found; and the lines that a model's header
says it mirrors are in the source. Without spin only the lines are compared, and the test counts as skipped.

Arguments: names of models (default: all). With `long`, as in `make test-long`, also other numbers of ranks.
"""

import concurrent.futures
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time

MODELS = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(os.path.dirname(MODELS))
SECONDS, MEBIBYTES = 60, 512  # of processor time for all models, and of memory for one

DEADLOCK, ASSERTION = "invalid end state", "assertion violated"

# Model, its macros, and what the checker finds: None, the property holds.
CHECKS = []


def check(model, macros, found, ranks):
    CHECKS.append((model, f"N={ranks} {macros}".split(), found))


def repeat(model, macros, found, *every_ranks):
    """The same on other numbers of ranks, with the argument `long`."""
    for ranks in every_ranks if "long" in sys.argv else ():
        check(model, macros, found, ranks)


check("blocking", "SKIP", None, 3)
repeat("blocking", "SKIP", None, 2)
check("blocking", "", None, 4)
repeat("blocking", "", None, 5)
check("blocking", "NO_BARRIER", None, 4)
check("blocking", "EAGER=1 SKIP", None, 3)
repeat("blocking", "EAGER=1", None, 4)
check("blocking", "SENDS_FIRST", DEADLOCK, 3)
repeat("blocking", "SENDS_FIRST", DEADLOCK, 2)
check("blocking", "SENDS_FIRST EAGER=1", None, 4)  # a buffer for one message is enough
repeat("blocking", "SENDS_FIRST EAGER=1", None, 3)
check("blocking", "RECEIVES_FIRST EAGER=1", DEADLOCK, 3)  # no buffer is
check("blocking", "ONE_RECEIVES_FIRST NO_BARRIER", None, 4)  # odd/even is for time, not for safety
check("blocking", "SKIP RECEIVER_MISCOUNTS EAGER=1", ASSERTION, 3)

check("overlapped", "SKIP", None, 3)
repeat("overlapped", "SKIP", None, 2)
check("overlapped", "SKIP EAGER", None, 2)
check("overlapped", "EAGER", None, 3)
repeat("overlapped", "", None, 4)
check("overlapped", "WAITS=1", ASSERTION, 3)
repeat("overlapped", "WAITS=1", None, 2)  # one hop does not show it
check("overlapped", "WAITS=2", ASSERTION, 2)
check("overlapped", "WAITS=0", ASSERTION, 2)
check("overlapped", "EARLY", ASSERTION, 2)

check("enqueued", "SKIP", None, 2)
check("enqueued", "", None, 3)
check("enqueued", "NO_READY", ASSERTION, 3)
repeat("enqueued", "NO_READY", None, 2)  # one hop does not show it
check("enqueued", "NO_ARRIVED", ASSERTION, 2)

check("backward", "SKIP", None, 3)
repeat("backward", "SKIP", None, 2)
check("backward", "", None, 4)
check("backward", "EAGER=1", None, 4)
repeat("backward", "EAGER=1", None, 2, 3)
check("backward", "GRADIENT_HOPS=N-1", ASSERTION, 3)
check("backward", "ADDS_EARLY", ASSERTION, 2)
check("backward", "SWAPPED=0", DEADLOCK, 3)
repeat("backward", "SWAPPED=0", None, 2)  # one hop does not show it
check("backward", "SWAPPED=1 EAGER=1", DEADLOCK, 3)  # no buffer helps

check("onesided", "", None, 3)
check("onesided", "CREDIT=0", ASSERTION, 3)
check("onesided", "CREDIT=1", ASSERTION, 3)
for mistake in ("", "CREDIT=0", "CREDIT=1"):
    repeat("onesided", mistake, None, 2)  # one hop does not show it
check("onesided", "NO_ORDER", ASSERTION, 2)


def mirrored(model):
    """[(file, line)] that the header of a model says it mirrors."""
    with open(os.path.join(MODELS, model + ".pml"), encoding="utf-8") as file:
        header = file.read().split("*/")[0]
    name, lines = None, []
    for line in header.splitlines():
        named = re.search(r"((?:src|tests)/[\w/.]+)[,:]", line)
        if named:
            name = named[1]
        elif line.startswith("     | "):
            lines.append((name, line[7:]))
    return lines


def line_problems(model):
    lines = mirrored(model)
    problems = [] if lines else [f"{model}.pml does not say which lines it mirrors"]
    for name, line in lines:
        with open(os.path.join(SOURCE, name), encoding="utf-8") as file:
            if not any(theirs.startswith(line) for theirs in file.read().splitlines()):
                problems.append(f"{model}.pml mirrors a line that {name} does not have: {line}")
    return problems


def verify(model, macros, folder):
    """What the checker says about one variant, and the number of states."""
    words = [f"-D{macro}" for macro in macros]
    compiler = shutil.which("gcc") or "cc"
    for command in (
        ["spin", *words, "-a", os.path.join(MODELS, model + ".pml")],
        [compiler, "-O0", "-w", "-DSAFETY", f"-DMEMLIM={MEBIBYTES}", "-o", "pan", "pan.c"],
        ["./pan", "-m200000", "-w19"],
    ):
        done = subprocess.run(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    text = done.stdout
    errors = re.search(r"errors: (\d+)", text)
    states = re.search(r"(\d+) states, stored", text)
    if done.returncode != 0 or not errors or "depth too small" in text or "out of memory" in text:
        return f"the checker failed: {text}", "?"
    if errors[1] == "0":
        # An unfinished search would also find nothing.
        return (None if "Search not completed" not in text else f"not completed: {text}"), states[1]
    return re.search(r"pan:\d+: (.*)", text)[1], states[1]


def run(one):
    model, macros, expected = one
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ring_attention_spin_") as folder:
        found, states = verify(model, macros, folder)
    right = found is None if expected is None else found is not None and expected in found
    words = "holds" if found is None else found
    seconds = time.monotonic() - begin
    verdict = "ok  " if right else "FAIL"
    print(f"{verdict} {model} {' '.join(macros)}: {words}; {states} states, {seconds:.1f} s", flush=True)
    return right


def main():
    wanted = [word for word in sys.argv[1:] if word != "long"] or sorted({model for model, _, _ in CHECKS} | {"topology"})
    problems = [problem for model in wanted for problem in line_problems(model)]
    for problem in problems:
        print("FAIL", problem, flush=True)
    if problems:
        return 1
    if not shutil.which("spin"):
        print("skipped: spin is not installed (`sh setup.sh test` installs it)")
        return 77
    with concurrent.futures.ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        verdicts = list(pool.map(run, [one for one in CHECKS if one[0] in wanted]))
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = spent.ru_utime + spent.ru_stime
    print(f"{len(verdicts)} checks, {seconds:.0f} s of processor time")
    return 0 if all(verdicts) and seconds <= SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
