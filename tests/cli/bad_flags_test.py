"""Flags that cannot be, and the help: one line that names the flag and the remedy, exit code 2, nothing written. What any flag
may be: command_line_test.cpp. What each flag needs, and its largest numbers: tests/program."""

import re

import harness
import pytest
from conftest import QKV

RANDOM = ("--random", "1,2,12,4")

# What is given after `run`, and what the line must say.
BAD_FLAGS = (
    (("--bogus",), ("--bogus", "run --help")),
    (("-x",), ("-x", "run --help")),
    ((*RANDOM, "stray"), ("stray", "run --help")),
    (("example",), ("example", "run --help")),
    ((), ("nothing to compute: give --q, --k and --v, or --random B,H,S,D: see ring-attention run --help",)),
    (("--q", "q.npy"), ("--q, --k and --v belong together: give all three",)),
    (("--k", "q.npy", "--v", "v.npy"), ("--q, --k and --v belong together: give all three",)),
    ((*RANDOM, "--q", "q.npy"), ("--q excludes --random",)),
    ((*QKV, *RANDOM), ("--q excludes --random",)),
    ((*RANDOM, "--seed", "1", "--seed", "2"), ("--seed", "1 required but received")),
    ((*RANDOM, "--scale", "nan"), ("--scale", "finite")),
    ((*RANDOM, "--dropout", "nan"), ("--dropout", "finite")),
    *[((*RANDOM, "--softcap", cap), ("--softcap", "positive")) for cap in ("0", "-1")],
    *[((*RANDOM, "--softcap", cap), ("--softcap is " + cap, "1.7e+38")) for cap in ("1e+39", "1e-300", "1e-46")],
    *[((*RANDOM, "--scale=" + scale), ("--scale is " + scale, "1.7e+38")) for scale in ("1e+39", "-1e+39")],
    *[((*RANDOM, "--timeout", timeout), ("--timeout must be above 0 seconds",)) for timeout in ("0", "-1")],
    *[((*RANDOM, "--causal", flag, "0"), (flag, "from 1")) for flag in ("--tile", "--prefix", "--chunk", "--ulysses")],
    *[((*RANDOM, flag, "-1"), (flag, "from 0")) for flag in ("--seed", "--kv-heads", "--expect-ranks")],
    ((*RANDOM, "--dropout", "0.1", "--dropout-seed", "-1"), ("--dropout-seed", "from 0")),  # a newer CLI11 first looks for --dropout
    ((*RANDOM, "--kv-heads", "3"), ("--kv-heads 3 must divide the H of --random, 2",)),
    ((*RANDOM, "--dout", "dout.npy"), ("--dout excludes --random",)),
    (("--dout", "dout.npy"), ("--dout goes with --q, --k and --v",)),
    ((*RANDOM, "--window", "3,-2"), ("--window", "LEFT,RIGHT", "from -1")),
    ((*RANDOM, "--placement", "diagonal"), ("--placement", "zigzag")),
    ((*RANDOM, "--transport", "pigeon"), ("--transport", "overlapped")),
    ((*RANDOM, "--parallel", "rings"), ("--parallel", "ulysses", "all-gather")),
    ((*RANDOM, "--progress", "maybe"), ("--progress", "maybe", "always")),
    ((*RANDOM, "--parallel", "hybrid"), ("--parallel hybrid needs --ulysses N, the number of ranks that share the heads",)),
    ((*RANDOM, "--causal", "--prefix", "13"), ("prefix", "0:13", "12 keys")),
    *[((*RANDOM, "--causal", "--blocks", text), ("--blocks", text, "BEGIN:END"))
      for text in ("1", "1:", ":2", "a:b", "1:2,", ",1:2", "1:2;3:4", "-1:2", "1: 2", "1:99999999999999999999")],
    ((*RANDOM, "--causal", "--blocks", "0:4,3:6"), ("blocks", "3:6 begins before 4")),
    ((*RANDOM, "--causal", "--blocks", "5:4"), ("blocks", "5:4")),
    ((*RANDOM, "--causal", "--blocks", "3:6", "--prefix", "4"), ("prefix", "3:6 begins before 4")),
    ((*RANDOM, "--window", "1,0", "--global-tokens", "0:1,2:3,4:5"), ("global tokens", "query 11", "four intervals")),
    ((*RANDOM, "--causal", "--intervals", "a.npy", "--prefix", "4"), ("--intervals", "--prefix")),
    ((*RANDOM, "--expect-ranks", "9"), ("--expect-ranks", "9", "rank")),
    (QKV, ("the result would go nowhere: give --out DIR, or --check",)),
    (("--random", "1,2,12"), ("--random", "1,2,12", "B,H,S,D")),
    (("--random", "1,2,0,4"), ("--random", "from 1")),
    (("--random", "1,4294967296,1,1"), ("--random", "2^31 - 1")),
    *[(("--random", shape), ("--random asks for more than 2^48 elements: give smaller numbers",))
      for shape in ("4294967296,4294967296,1,1", "3000000000,3000000000,3000000000,3", "1,1,281474976710657,1")],
)


@pytest.mark.parametrize("ranks, words, said", [
    *[(1, *row) for row in BAD_FLAGS], *[(2 + i % 2, *row) for i, row in enumerate(BAD_FLAGS[::1 if harness.LONG else 4])]])
def test_bad_flags(program, ranks, words, said):
    program.refuse(ranks, ("run", *words), said)


@pytest.mark.parametrize("words", (("--placement", "a\nb"), ("--placement=\n",), ("--scale", "1\r\n2"), ("a\nb",)))
def test_a_line_break_in_a_value(program, words):
    program.refuse(1, ("run", *RANDOM, *words), ("?",))


def test_a_line_break_in_a_name(program):
    program.refuse(1, ("run", "--check", "--q", "no\nq.npy", *QKV[2:]), ("no?q.npy: cannot be read",))


def test_a_world_of_another_size(program):
    program.run_well(3, "run", *RANDOM, "--expect-ranks", "3")
    assert program.run_well(3, "run", *RANDOM, "--np", "3").err == "--np is now --expect-ranks\n"
    for ranks, promised, said in ((3, "4", "3 ranks"), (1, "4", "1 rank "), (3, "2", "3 ranks")):
        program.refuse(ranks, ("run", *RANDOM, "--expect-ranks", promised), ("--expect-ranks", said, "mpirun"))


def test_ranks_that_are_started_with_other_flags(program):
    other = (":", "-n", 1, harness.PROGRAM, "run", *RANDOM, "--causal")
    program.assert_refused(program.run_ranks(1, "run", *RANDOM, *other),
                           "the ranks disagree on --causal: rank 0 has its default, rank 1 has true")


@pytest.mark.parametrize("words, said", (
    ((), ("subcommand", "ring-attention --help")), (("walk",), ("walk", "ring-attention --help")), (("--bogus",), ("--bogus", "--help")),
    (("example", "--bogus"), ("--bogus", "example --help")),
))
def test_commands(program, words, said):
    for ranks in (1, 4):
        program.refuse(ranks, words, said)


# ---- the help


def help_of(program, *words):
    result = program.run_well(1, *words, "--help", launcher=False)
    assert result.err == ""
    assert [line for line in result.out.splitlines() if len(line) > 100 or line != line.rstrip()] == []
    return result.out


def test_help_of_the_program(program):
    text = help_of(program)
    for words in ("Usage: ring-attention", "run ", "example ", "mpirun -n", "--version"):
        assert words in text
    assert program.run_well(1, "-h", launcher=False).out == text


def test_help_on_four_ranks(program):
    text = help_of(program, "run")
    assert program.run_well(4, "run", "--help").out == text  # rank 0 alone prints


@pytest.mark.parametrize("ranks", (1, 3))
def test_version(program, ranks):
    assert re.fullmatch(r"ring-attention \d+\.\d+\.\d+ \(CPU kernels: \w+\)\n", program.run_well(ranks, "--version").out)
