"""`ring-attention run`: what it writes is attention, for every kind of input, on any number of ranks."""

import os
import signal

import harness
import numpy as np
import pytest
from conftest import QKV
from reference import largest_difference

DOUT = "--dout dout.npy"
BOUNDARIES = [0, 4, 4, 5, 13]
INTERVALS = [[[0, query % 2], [4, 4], [5 + query // 2, 9 + query // 3]] for query in range(13)]


def case(ranks, q, kv=None, words="", dtype="<f8", value_dim=None, **terms):
    return pytest.param(ranks, q, kv, words, dtype, value_dim, terms, id=f"{ranks} ranks, {dtype} {q} {words}")


@pytest.mark.parametrize("ranks, q, kv, words, dtype, value_dim, terms", (
    # dimensions, types, engines, heads, lengths, widths
    case(4, (13, 8)),
    case(3, (2, 13, 8)),
    case(4, (2, 3, 13, 8)),
    *[case(ranks, (2, 9, 4), dtype=dtype) for ranks, dtype in ((3, "<f2"), (4, "<f4"), (1, "<f8"))],
    *[case(2, (2, 9, 4), words=f"{DOUT} --engine {engine}", dtype=dtype)
      for dtype in ("<f4", "<f8") for engine in ("fast", "readable")],
    case(3, (2, 6, 10, 4), (2, 3, 10, 4)),
    case(3, (4, 10, 4), (1, 10, 4)),
    case(4, (5, 4), (11, 4)),
    case(3, (11, 4), (5, 4)),
    case(3, (1, 4), (9, 4)),
    *[case(ranks, (4, 10, 4), (2, 11, 4), f"{DOUT} --check {words}", value_dim=value_dim) for value_dim in (1, 3, 9)
      for ranks, words in ((3, ""), (2, "--parallel ulysses"), (4, "--parallel all-gather"), (2, "--engine readable"))],
    *[case(ranks, (1, 4)) for ranks in (1, 3)],
    case(7, (2, 5, 4), words=f"--causal --check {DOUT}", causal=True),  # fewer tokens than ranks
    case(3, (6, 1)),
    # masks
    *[case(ranks, (2, 13, 4), words="--causal", causal=True) for ranks in (1, 3, 4)],
    case(4, (5, 4), (11, 4), "--causal", causal=True),
    case(4, (11, 4), (5, 4), "--causal", causal=True),  # rows that see nothing
    case(3, (8, 4), words="--causal --q-offset=-100", causal=True, q_offset=-100),
    case(3, (8, 4), words="--causal --q-offset -3", causal=True, q_offset=-3),
    case(3, (4, 4), (12, 4), "--causal --q-offset 5", causal=True, q_offset=5),
    case(1, (4, 4), (12, 4), "--causal --q-offset 1000", causal=True, q_offset=1000),
    case(4, (2, 13, 4), words="--window 2,1", window=(2, 1)),
    case(3, (7, 4), (13, 4), "--window 2,1 --placement zigzag", window=(2, 1)),
    case(3, (9, 4), words="--window 3,-1 --causal", window=(3, 0)),
    *[case(ranks, (2, 13, 4), words="--documents boundaries.npy --causal", causal=True, documents=BOUNDARIES) for ranks in (1, 4)],
    case(3, (2, 13, 4), words="--causal --prefix 5 --blocks 7:10", causal=True, prefix=5, blocks=[(7, 10)]),
    case(4, (2, 13, 4), words="--causal --window 2,0 --sink-tokens 3", window=(2, 0), sink_tokens=3),
    case(2, (2, 13, 4), words="--window 1,1 --global-tokens 0:1,6:8", window=(1, 1), global_tokens=[(0, 1), (6, 8)]),
    case(3, (2, 13, 4), words="--causal --chunk 4 --placement zigzag", causal=True, chunk=4),
    case(3, (2, 13, 4), words="--chunk 4 --q-offset=-6", chunk=4, q_offset=-6),
    case(4, (2, 13, 4), words="--intervals intervals.npy --placement striped", intervals=np.array(INTERVALS)),
    # scores
    case(3, (9, 4), words="--scale 0.125", scale=0.125),
    case(1, (9, 4), words="--scale=-2", scale=-2.0),
    case(1, (9, 4), words="--scale 0", scale=0.0),
    case(3, (2, 9, 4), words=f"--softcap 0.8 {DOUT}", softcap=0.8),
    case(2, (2, 9, 4), words=f"--softcap 1.5 {DOUT} --causal --engine readable", causal=True, softcap=1.5),
    case(4, (3, 9, 4), words="--alibi", alibi=True),
    # tiles, placements, transports
    *[case(3, (20, 4), words=f"--engine readable --tile {tile} --causal", causal=True) for tile in (1, 3, 1000)],
    *[case(ranks, (2, 13, 4), words=f"--causal --placement {words}", causal=True) for ranks, words in (
        (4, "striped --transport overlapped"), (4, "zigzag --transport odd-even"), (3, "zigzag --transport overlapped"),
        (3, "striped --transport odd-even"))],
    case(1, (2, 4, 9, 4), (2, 2, 9, 4), f"{DOUT} --causal --placement contiguous", causal=True),
    case(4, (2, 4, 9, 4), (2, 2, 9, 4), f"{DOUT} --causal --placement striped", causal=True),
    case(3, (4, 6, 4), (2, 11, 4), f"{DOUT} --causal --placement zigzag", causal=True),
    case(4, (9, 4), words=f"{DOUT} --transport odd-even", dtype="<f4"),
))
def test_is_attention(program, ranks, q, kv, words, dtype, value_dim, terms):
    program.write_problem(q, kv, dtype, value_dim)
    program.save(boundaries=np.array(BOUNDARIES), intervals=np.array(INTERVALS, "<i4"))
    program.run_well(ranks, "run", *QKV, "--out", "results", *words.split())
    program.assert_results("<f8" if dtype == "<f8" else "<f4", DOUT in words, **terms)


def test_random_values_of_another_width(program):
    program.run_well(3, "run", "--random", "1,4,40,12", "--kv-heads", "2", "--value-dim", "7", "--backward", "--check")
    report = program.run_well(2, "run", "--random", "1,2,9,12", "--value-dim", "7", "--json")
    assert '"value_dim": 7' in report.out


@pytest.mark.parametrize("version", ((2, 0), (3, 0)))
def test_header_versions(program, version):
    program.write_problem((2, 9, 4))
    for name, array in zip("qkv", program.arrays):
        with open(program.path(name + ".npy"), "wb") as file:
            np.lib.format.write_array(file, array, version=version)
    program.run_well(3, "run", *QKV, "--out", "results")
    program.assert_results()


def test_names_with_spaces_colons_and_bytes_that_are_no_text(program):
    program.write_problem((9, 4))
    os.makedirs(program.path("a b"))
    words = []
    for name, odd in (("q", "a b/q:1.npy"), ("k", "a b/ufs:k.npy"), ("v", os.fsdecode(b"a b/\xff.npy"))):
        os.rename(program.path(name + ".npy"), program.path(odd))
        words += ["--" + name, program.path(odd)]
    program.run_well(4, "run", *words, "--out", program.path("results"))
    program.assert_results()


def test_transports_agree_bit_for_bit(program):
    program.write_problem((2, 13, 8))
    for transport in ("overlapped", "odd-even"):
        program.run_well(4, "run", *QKV, "--transport", transport, "--dout", "dout.npy", "--out", transport)
    assert program.bits("overlapped") == program.bits("odd-even")


def test_without_the_launcher(program):
    program.write_problem((9, 4))
    program.run_well(1, "run", *QKV, "--out", "results", launcher=False)
    program.assert_results()


def test_a_second_run_overwrites(program):
    program.write_problem((9, 4))
    program.run_well(3, "run", *QKV, "--out", "results", "--scale", "3")
    program.write_problem((2, 5, 4))
    program.run_well(4, "run", *QKV, "--out", "results")
    program.assert_results()
    assert program.report()["q_shape"] == [1, 2, 5, 4]


def test_the_next_run_removes_what_a_killed_run_leaves(program):
    """And nothing else: names that the program does not make, a directory, a link, another job's files."""
    words = "run --random 1,2,65536,64 --backward --out results --trace results/t.json".split()
    left = [f"{name}.npy.part" for name in ("dk", "dq", "dv", "lse", "out")]
    left += [f"t.json.rank{rank}" for rank in range(3)]
    os.mkdir(program.path("results"))  # where the trace goes, too
    with harness.Job(3, *words, cwd=program.folder) as job:
        job.until(lambda: program.files_in("results") == left, "its files were open")
        for pid in job.processes():
            harness.send(pid, signal.SIGKILL)
        job.wait()
    assert program.files_in("results") == left
    others = ["notes.part", "other/dq.npy.part", "q.npy.part", "x.npy"]
    others += ["t.json.rank", "t.json.rank03", "t.json.rank1.txt"]
    os.makedirs(program.path("results/other"))
    os.makedirs(program.path("results/dbias.npy.part"))
    for name in [*others, "report.json.part", "t.json.rank17"]:
        program.write(f"results/{name}", b"stale" * 1000)
    os.symlink("x.npy", program.path("results/dsink.npy.part"))
    others.append("dsink.npy.part")
    program.write_problem((2, 5, 4))
    again = ("run", *QKV, "--out", "results", "--trace", "results/t.json")
    assert program.run_well(2, *again).err.splitlines() == [
        "results/t.json: removed 4 files FILE.rankN, which a killed job left",
        "results: removed report.json.part, out.npy.part, lse.npy.part, dq.npy.part, dk.npy.part, dv.npy.part,"
        " which a killed job left",
    ]
    program.assert_results(also=[*others, "t.json"])
    assert os.path.isdir(program.path("results/dbias.npy.part"))
    assert program.run_well(2, *again).err == ""


def test_random_is_the_same_problem_on_any_number_of_ranks(program):
    words = ("run", "--random", "2,4,11,8", "--kv-heads", "2", "--check")
    for ranks, seed, folder in ((1, 7, "on1"), (4, 7, "on4"), (1, 8, "other")):
        program.run_well(ranks, *words, "--seed", seed, "--out", folder)
    one, four, other = (program.array(f"{folder}/out.npy") for folder in ("on1", "on4", "other"))
    assert (one.shape, one.dtype) == ((2, 4, 11, 8), np.float32)
    assert largest_difference(one, four) <= 1e-6
    assert largest_difference(one, other) > 0.1
