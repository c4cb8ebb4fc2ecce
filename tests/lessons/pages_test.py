"""What the pages quote is what the commands print: every block of output, in the lessons' pages and in README.md.

A block of a page without a language is either commands (lines that begin with a program of the build) or output. Each line
of output must be a line that a command of the page, or of the README.md beside it, prints, in this order; between two of them
there may be more. The comment <!-- output of: COMMAND --> before a block names a command that the page does not show.

Compared exactly: words, counts, bytes, shapes, verdicts. Errors (1.2e-7): within a factor of 4. Other numbers with a point: to
1 %. In lines, and in tables under a line, that speak of times or rates: only that there is a number.

Usage: pages_test.py [page ...]
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(os.environ.get("RING_ATTENTION_SOURCE", Path(__file__).resolve().parents[2]))
BUILD = Path(os.environ.get("RING_ATTENTION_BUILD", SOURCE / "build/release")).resolve()
PAGES = [*sorted(path for path in SOURCE.glob("lessons/*/*.md")), SOURCE / "README.md"]

BLOCK = re.compile(r"(?:^<!-- output of: (?P<command>.*) -->\n\n?)?"
                   r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$", re.M | re.S)
# make run prints it; README.md has no line for a comment.
OF_README = ("build/release/ring-attention example --text README.md --out results && "
             "build/release/mpirun -n 4 build/release/ring-attention run --q results/q.npy --k results/k.npy --v results/v.npy "
             "--out results/results --causal --check")
NOT_RUN = ["$ ring-attention diagnose my-ring"]  # results of another package
if shutil.which("nvidia-smi") or not (BUILD / "lessons/11_tensor_cores").exists():
    NOT_RUN.append("lesson 11 tensor_cores: SKIPPED")
PREDICTS = re.compile(r"ring-attention plan|14_planning|00_attention")  # its times are no measurements
COMMAND = re.compile(r"(build/release/\S+|mpirun|mpicxx|objdump|make|diff|ring-attention|sh|cd|cp|cmp|EMULATED\S*) ")
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[-+]?\d+)?(?![\w]*[A-Za-z_]\w*\.)")
TIMES = re.compile(r"\b(?:ms|us|ns|seconds?|CPU|wall|FLOP/s|[GMT]FLOP/s|[GM]i?B/s|tokens/s|faster|slower|utilisation|exposed|median)\b")
TIME = re.compile(r"\d+(?:\.\d+)? (?:ns|us|ms|s|min)\b|\d+\.\d+e\+\d+ (?:FLOP|bytes)/s")
SURE = re.compile(r"-?\d+(?:\.\d+)? [KMGT]iB|\d\.\d+e-\d+")
FACTOR_OF_ERRORS, OTHER = 4, 0.01


def blocks(page):
    """[(line, command, lines of text)]"""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in BLOCK.finditer(text):
        if match["language"]:
            continue
        lines = [line.strip() for line in match["text"].splitlines()]
        found.append((text[:match.start("text")].count("\n"), match["command"], [line for line in lines if line]))
    return found


def commands_of(lines):
    """The block's commands, one a line; empty if it is output."""
    joined = " ".join(lines).replace("\\ ", "")
    lines = "\n".join(lines).replace("\\\n", "").splitlines()
    return lines if joined and all(COMMAND.match(line + " ") for line in lines) else []


class Outputs:
    """What commands print, each run once, in a folder that shows the source."""

    def __init__(self, folder):
        self.folder, self.lines = folder, {}
        for entry in SOURCE.iterdir():
            if entry.name != "build":
                os.symlink(entry, os.path.join(folder, entry.name))
        os.symlink(BUILD.parent, os.path.join(folder, "build"))

    def of(self, command):
        if command not in self.lines:
            words = re.sub(r"(?<!\S)mpirun\b", "build/release/mpirun", command)
            print(f"  {command}", flush=True)
            done = subprocess.run(words.replace("build/release/", f"{BUILD}/"), shell=True, cwd=self.folder, text=True,
                                  capture_output=True, timeout=900, check=False)
            self.lines[command] = [line.strip() for line in (done.stdout + done.stderr).splitlines()]
        return self.lines[command]


def words_and_numbers(line):
    line = re.sub(r"\b(?=[0-9a-f]*[a-f])(?=[0-9a-f]*\d)[0-9a-f]{8}\b", "checksum", line)  # the instruction set's
    words = re.sub(r"# (?:ns|us|ms|s|min)\b", "# time", NUMBER.sub("#", line))
    return re.sub(r"[\s-]*\s+", " ", words), NUMBER.findall(line)


def same_number(quoted, printed):
    if "e" in quoted and "e" in printed:
        a, b = float(quoted), float(printed)
        return a == b or 1 / FACTOR_OF_ERRORS <= a / (b or 1e-300) <= FACTOR_OF_ERRORS
    if "." in quoted:
        return abs(float(quoted) - float(printed)) <= OTHER * abs(float(quoted)) + 1e-9
    return quoted == printed


def same(quoted, printed, has_times):
    """In a line with times: from the first one on, or from the first number with a point, only sizes and errors count."""
    (words, numbers), (other_words, other_numbers) = words_and_numbers(quoted), words_and_numbers(printed)
    if words != other_words or len(numbers) != len(other_numbers):
        return False
    first = len(quoted)
    if has_times:
        first = (TIME.search(quoted) or re.search(r"\d+\.\d", quoted) or re.search("$", quoted)).start()
    return all(match.start() >= first and not SURE.match(quoted, match.start()) or same_number(a, b)
               for match, a, b in zip(NUMBER.finditer(quoted), numbers, other_numbers))


def unlike(lines, printed, has_times):
    """How many lines of a block are printed, one after the other, before the first that is not."""
    at, is_table_of_times = 0, False
    for number, line in enumerate(lines):
        if line.startswith(("ok ", "lesson ", "---")):
            is_table_of_times = False
        elif not NUMBER.search(line) or "  " in line and len(NUMBER.findall(line)) < 2:
            is_table_of_times = bool(TIMES.search(line))
        is_time = is_table_of_times or bool(TIMES.search(line) or TIME.search(line))
        while at < len(printed) and not same(line, printed[at], has_times and is_time):
            at += 1
        if at == len(printed):
            return number
        at += 1
    return len(lines)


def commands_on(page):
    commands = [OF_README] if page == SOURCE / "README.md" else []
    for one in dict.fromkeys((page, page.parent / "README.md")):
        for _, _, lines in blocks(one):
            commands += [command for command in commands_of(lines) if command.startswith(("build/", "mpirun", "diff"))]
    return commands


def check(page, outputs):
    """(blocks of output, lines about those that are wrong)"""
    wrong, checked = [], 0
    for number, command, lines in blocks(page):
        if commands_of(lines) or any(lines[0].startswith(words) for words in NOT_RUN):
            continue
        checked += 1
        lines = [line for line in lines if line != "..." and not line.startswith("$ ")]
        right = 0
        for one in [command] if command else commands_on(page):
            right = max(right, unlike(lines, outputs.of(one), not PREDICTS.search(one)))
            if right == len(lines):
                break
        else:
            wrong.append(f"{page.relative_to(SOURCE)}:{number}: no command prints `{lines[right]}`")
    return checked, wrong


def main():
    pages = [Path(word).resolve() for word in sys.argv[1:] if word != "long"] or PAGES
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        outputs = Outputs(folder)
        for page in pages:
            checked, of_page = check(page, outputs)
            if checked > 0:
                right = checked - len(of_page)
                print(f"{page.relative_to(SOURCE)}: {right} of {checked} blocks are what is printed", flush=True)
            wrong += of_page
            for line in of_page:
                print("    " + line, flush=True)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
