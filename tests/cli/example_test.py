"""`ring-attention example`, and then `run` on what it made."""

import math
import os

import numpy as np
import pytest

TEXT = b"the ring turns, the ring turns, and every query sees every key. "
TOKENS = len(TEXT)
RUN = "run --q in/q.npy --k in/k.npy --v in/v.npy --dout in/dout.npy --causal --check --out results".split()


@pytest.fixture
def example(program):
    """The program and a text; example(ranks, words) makes arrays of it."""
    program.write("text.txt", TEXT)
    program.make = lambda words, ranks=1: program.run_well(ranks, "example", "--text", "text.txt", *words.split(),
                                                           launcher=ranks > 1)
    return program


def test_then_run(example):
    """The arrays act out an induction head: a query looks where the same bytes stood before."""
    os.mkdir(example.path("in"))
    example.write("in/sink.npy.part", b"")  # which a killed `example --sink` leaves
    result = example.make("--out in --dim 32")
    assert "in: removed sink.npy.part" in result.err
    assert f"the first {TOKENS} bytes of text.txt" in result.out
    assert example.files_in("in") == ["dout.npy", "k.npy", "q.npy", "v.npy"]
    for name, heads in (("q", 4), ("k", 2), ("v", 2), ("dout", 4)):
        array = example.array(f"in/{name}.npy")
        assert (array.shape, array.dtype) == ((1, heads, TOKENS, 32), np.float32)
    example.run_well(4, *RUN)

    q, k = (example.array(f"in/{name}.npy")[0] for name in "qk")
    after, other = TEXT.index(b"g t") + 3, TEXT.index(b", t") + 3
    assert (k[0, after] == k[0, other]).all() and (k[1, after] != k[1, other]).any()  # contexts of 2 and of 3 bytes
    assert (q[1] == 2 * q[0]).all() and (q[3] == 2 * q[2]).all()  # the gain
    # The second query head of the first KV head, at the end of the second "the ring turn": what comes next?
    out, values = example.array("results/out.npy")[0, 1], example.array("in/v.npy")[0, 0]
    here = TEXT.index(b"turns", TEXT.index(b"turns") + 1) + 3
    assert TEXT[here : here + 2] == b"ns"
    scores = {byte: out[here] @ values[TEXT.index(byte)] for byte in TEXT}
    assert max(scores, key=scores.get) == ord("s")
    dout = example.array("in/dout.npy")[0, 0]  # less of this would be a better guess: the byte after each one
    assert dout[here].tolist() == (-values[TEXT.index(b"s")]).tolist()


def test_with_a_bias_and_sinks(example):
    example.make("--out in --dim 8 --bias --sink")
    assert example.files_in("in") == ["bias.npy", "dout.npy", "k.npy", "q.npy", "sink.npy", "v.npy"]
    bias, sink = example.array("in/bias.npy"), example.array("in/sink.npy")
    assert (bias.shape, bias.dtype, sink.dtype) == ((TOKENS, TOKENS), np.float32, np.float32)
    assert bias[5, 2] == pytest.approx(-math.log(4), abs=1e-6)
    assert sink.tolist() == [1.0] * 4
    example.run_well(3, *RUN, *"--bias in/bias.npy --sink in/sink.npy --dropout 0.1".split())
    assert "dbias.npy" in example.files_in("results")


def test_on_several_ranks_it_is_made_once(example):
    assert example.make("--out in --tokens 10 --dim 4", 3).out.count("\n") == 1
    assert example.array("in/v.npy").shape == (1, 2, 10, 4)


def test_the_same_text_gives_the_same_files(example):
    for out in ("one", "two", "other --seed 2"):
        example.make(f"--dim 4 --out {out}")
    one, two, other = map(example.bits, ("one", "two", "other"))
    assert one == two
    assert [name for name in one if one[name] == other[name]] == []


@pytest.mark.parametrize("words, said", (
    ("--text missing.txt", ("missing.txt", "--text")),
    ("", ("README.md", "--text")),  # the default, where it is not
    ("--text .", ("--text",)),
    ("--text empty.txt", ("empty.txt", "empty")),
    ("--text text.txt --out text.txt", ("--out text.txt",)),
    ("--text text.txt --kv-heads 9", ("--kv-heads", "to 4")),
    ("--text text.txt --dim 0", ("--dim", "from 1")),
    ("--text text.txt --out in", ("in/q.npy", "directory")),
    ("--text text.txt --out in --dim 1000000000000", ("--dim", "to 4096")),
))
def test_bad_input(example, words, said):
    example.write("empty.txt", b"")
    os.makedirs(example.path("in/q.npy/deeper"))
    example.refuse(1, ("example", *words.split()), said)
