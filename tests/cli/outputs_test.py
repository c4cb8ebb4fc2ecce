"""What the program prints, stored: tests/cli/outputs/NAME.txt has commands, each after "$ " and with the output that is due.

`outputs_test.py --write [NAME...]` writes the outputs again, so that a change is a diff to review. A new case is a line with a
command. The commands of a file run one after the other, in a folder that has the arrays and texts of `inputs`.
"""

import difflib
import json
import re
import shlex
import sys
import tempfile
from pathlib import Path

import harness
import numpy as np
import pytest
from reference import random_values

STORED = Path(__file__).resolve().parent / "outputs"
NAMES = sorted(file.stem for file in STORED.glob("*.txt"))
CONFIG = {"model_type": "own", "num_hidden_layers": 24, "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 4,
          "intermediate_size": 8192, "vocab_size": 32000, "head_dim": 256, "sliding_window": 4096, "num_experts": 8}

# What is measured or depends on the host becomes #. What `plan` predicts does not, nor what is computed from the question.
OF_SEARCH = (r"(found in )[\d.]+ \w+", r'("search_seconds": )[\d.e-]+')
MEASURED = (
    r'("\w+_seconds": )(?!0\.0\b)[^,\n]+',
    r'("(?:\w+_per_second|tensor_bytes|process_bytes|isa|threads|max|mean|relative)": )[^,\n]+',
    r"()\b(?:x86-64|avx2|avx512|neon|generic), \d+ threads?", r"(takes\s+the\s+widest\.)[^(]*",
    r"(  (?:tile|c\*) +).*", r"()\b\d\.\de[+-]\d\d\b", r"(at most )[\d.]+ [KM]?i?B",
    r"()\b[\d.e+-]+(?= (?:tokens/s|GFLOP/s|GB/s))",
    r"()\b[\d.e+]+ (?:us|ms|s)\b", r"(?m)(^ +\d+ +\d+ +\S+ +\S+ +)[\d.]+$",  # the second: a step of `train`
    r"((?:#|-) +)[\d.e+]+(?![\d.e+]| [KM]?i?B)", r"(B  +)\d+\.\d\d +\d+\.\d\d +\d+",  # ratios and rates of `bench`
)


def inputs(command):
    """Writes the files that commands read."""
    command.write("config.json", json.dumps(CONFIG))
    command.write("images.json", json.dumps({"text_config": {**CONFIG, "head_dim": 128, "num_key_value_heads": 8}}))
    command.write("text.txt", "the ring turns, and every query sees every key. ")
    shapes = {"q": (2, 4, 13, 8), "k": (2, 2, 17, 8), "v": (2, 2, 17, 5), "dout": (2, 4, 13, 5),
              "bias": (4, 13, 17), "sink": (4,)}
    command.save(**{name: random_values(shape, seed) for seed, (name, shape) in enumerate(shapes.items())})
    half = random_values((2, 13, 4), 9).astype("<f2")
    command.save(half=half, nan=np.where(half > 1.9, np.nan, half), sinks=np.array([0.5, -1], "<f4"),
                 documents=np.array([0, 5, 5, 17]), cu=np.array([0, 1000, 1500, 4096]),
                 rows=np.array([[[0, query // 3], [query // 2 + 3, query // 2 + 5]] for query in range(13)]))


def shown(verb, text):
    """An object of JSON with few digits, and indented; # for what is measured."""
    if text.startswith("{"):
        digits = 3 if verb == "diagnose" else 9
        text = json.dumps(json.loads(text, parse_float=lambda number: float(f"{float(number):.{digits}g}")), indent=1) + "\n"
    for pattern in OF_SEARCH if verb == "plan" else MEASURED:
        text = re.sub(pattern, r"\1#", text)
    return text if verb in ("plan", "help") else re.sub(r"(?<=\S)  +", "  ", text)


def output_of(command, line):
    """What a line with a command prints, and its exit code if it is not 0."""
    words = shlex.split(line)
    launched = words[0] == "mpirun"
    ranks, words = (int(words[2]), words[4:]) if launched else (1, words[1:])
    result = command.run_ranks(ranks, *words, launcher=launched)
    text = shown("help" if "--help" in words else words[0], result.out)
    text += "".join(f"stderr: {said}\n" for said in result.err.splitlines())
    return text + (f"exit code {result.code}\n" if result.code else "")


def outputs(program, name):
    """What is stored of a file, and what it would be now."""
    inputs(program)
    stored = (STORED / f"{name}.txt").read_text(encoding="utf-8")
    commands = re.findall(r"^\$ (.*)", stored, re.M)
    return stored, "\n".join(f"$ {line}\n{output_of(program, line)}" for line in commands)


@pytest.mark.parametrize("name", NAMES)
def test_outputs(program, name):
    both = [text.splitlines() for text in outputs(program, name)]
    difference = "\n".join(difflib.unified_diff(*both, f"{name}.txt, stored", "now", lineterm=""))
    assert not difference, difference


if "--write" in sys.argv:
    for one in set(NAMES) & set(sys.argv) or NAMES:
        with tempfile.TemporaryDirectory(prefix="ring_attention_cli_") as empty:
            (STORED / f"{one}.txt").write_text(outputs(harness.Command(empty), one)[1], encoding="utf-8")
    sys.exit()
