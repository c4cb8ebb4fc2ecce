"""Files that cannot be used: one line that names the file and the remedy, exit code 2, and nothing written. What a header of
`.npy` may be: tests/io."""

import io
import os
import resource

import harness
import numpy as np
import pytest
from conftest import QKV
from reference import random_values

SHAPE = (2, 6, 4)
RUN = ("run", *QKV, "--out", "results")


def saved(array, save=np.save):
    """The bytes of a file."""
    file = io.BytesIO()
    save(file, array)
    return file.getvalue()


def good(shape=SHAPE, dtype="<f8"):
    return saved(random_values(shape, 1, dtype))


def refuse(program, ranks, said, words=(), **files):
    """q, k and v are good unless given; a run on them is refused."""
    program.save(**{**dict.fromkeys("qkv", good()), **files})
    program.refuse(ranks, (*RUN, *words), said)


BROKEN_FILES = (
    (np.zeros(SHAPE, int), ("integers", "astype")),
    (np.zeros(SHAPE, bool), ("|b1", "astype")),
    (np.zeros(SHAPE, complex), ("<c16", "astype")),
    (np.zeros(SHAPE, ">f8"), ("big-endian", "astype")),
    (np.full(SHAPE, None), ("Python objects", "astype")),
    (np.zeros(SHAPE, "<U4"), ("<U4", "astype")),
    (np.zeros(SHAPE, [("x", "<f8")]), ("structured",)),
    (np.zeros(SHAPE, order="F"), ("Fortran order", "ascontiguousarray")),
    *[(np.zeros(shape), ("extent of 0",)) for shape in ((6, 0), (0, 4), (0, 6, 4))],
    (np.zeros(6), ("(6,)", "[S, D]", "reshape")),
    (np.zeros((1, 1, 1, 6, 4)), ("(1, 1, 1, 6, 4)", "[B, H, S, D]", "reshape")),
    (b"", ("truncated",)),
    (good()[:50], ("truncated",)),
    (good()[:128], ("truncated", "384", "missing")),
    (good()[:-1], ("truncated", "1 of its 512 bytes")),
    (good() + good(), ("follow the array",)),
    (good()[:6] + b"\x09\0" + good()[8:], ("version 9.0",)),
    (b"1.0 2.0 3.0\n" * 40, ("not a .npy file", "np.save")),
    (saved(np.zeros(SHAPE), np.savez), (".npz", "np.save")),
    (good().replace(b"'shape'", b"'shave'"), ("malformed",)),
    (good().replace(b"'<f8'", b"abort"), ("malformed",)),
)


@pytest.mark.parametrize("ranks, name, array, said", [
    *[(1, "qkv"[i % 3], *case) for i, case in enumerate(BROKEN_FILES)],
    *[(2 + i % 2, "q", *case) for i, case in enumerate(harness.first(7, *BROKEN_FILES[::-1]))]])
def test_broken_files(program, ranks, name, array, said):
    refuse(program, ranks, (f"{name}.npy: ", *said), **{name: array})


@pytest.mark.parametrize("ranks, q, k, v, said", [((1, 1, 4)[i % 3], *case) for i, case in enumerate((
    ((2, 6, 4), (2, 6, 4), (2, 7, 4), ("k.npy", "v.npy", "B, H and S of k and v must be the same")),
    ((2, 6, 4), (2, 6, 4), (2, 7, 5), ("k.npy", "v.npy", "B, H and S of k and v must be the same")),
    ((2, 6, 4), (2, 6, 4), (1, 6, 4), ("k.npy", "v.npy", "B, H and S of k and v must be the same")),
    ((2, 2, 6, 4), (3, 2, 6, 4), (3, 2, 6, 4), ("q.npy", "k.npy", "B must be the same")),
    ((2, 6, 4), (2, 6, 5), (2, 6, 5), ("q.npy", "k.npy", "D must be the same")),
    ((6, 4), (1, 6, 4), (1, 6, 4), ("q.npy", "k.npy", "2 dimensions", "3")),
    ((1, 6, 4), (1, 6, 4), (6, 4), ("q.npy", "v.npy", "3 dimensions", "2")),
    ((3, 6, 4), (2, 6, 4), (2, 6, 4), ("q.npy", "k.npy", "heads of k must divide")),
    ((2, 6, 4), (4, 6, 4), (4, 6, 4), ("q.npy", "k.npy", "heads of k must divide")),
))])
def test_shapes_that_disagree(program, ranks, q, k, v, said):
    refuse(program, ranks, said, q=good(q), k=good(k), v=good(v))


def test_types_that_disagree(program):
    refuse(program, 3, ("q.npy", "v.npy", "<f8", "<f4", "one type"), v=good(dtype="<f4"))
    program.save(q=good(dtype="<f4"), k=good(dtype="<f2"), v=good(dtype="<f4"))
    program.run_well(3, "run", *QKV, "--check")  # all float32 arithmetic: nothing is lost


@pytest.mark.parametrize("ranks", (1, 4))
@pytest.mark.parametrize("name", "qkv")
def test_each_file_missing(program, ranks, name):
    refuse(program, ranks, (f"{name}.npy", "No such file"), **{name: None})


@pytest.mark.parametrize("ranks, make, said", (
    (1, os.mkdir, ("directory",)), (3, os.mkdir, ("directory",)), (1, os.mkfifo, ()), (1, lambda path: os.symlink("/dev/zero", path), ()),
))
def test_other_things_instead_of_a_file(program, ranks, make, said):
    make(program.path("v.npy"))
    refuse(program, ranks, ("v.npy", *said), v=None)


@pytest.mark.parametrize("ranks, words, said", (
    *[(1, (flag, "loop.npy"), ("loop.npy", "Too many levels of symbolic links"))
      for flag in ("--documents", "--sink", "--bias", "--dout")],
    *[(ranks, (flag, "x" * 300), ("x" * 300, "File name too long")) for ranks in (1, 3) for flag in ("--sink", "--trace")],
    *[(ranks, ("--trace", "loop.npy/deeper"), ("--trace", "loop.npy")) for ranks in (1, 3)],
))
def test_names_that_lead_nowhere(program, ranks, words, said):
    os.symlink("loop.npy", program.path("loop.npy"))
    refuse(program, ranks, said, words)


@pytest.mark.parametrize("dtype, flag, said, limits", (
    ("<f8", "--sink", "34359738368 numbers for 2 query heads", {}),
    pytest.param("<i8", "--documents", "bytes, more than",
                 {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_AS, (2**34, 2**34))},
                 marks=pytest.mark.skipif(harness.SLOWNESS > 1, reason="a sanitizer needs more address space than that")),
))
def test_sparse_files(program, dtype, flag, said, limits):
    """Of 256 GiB, refused by the header or by the memory that they would take."""
    np.lib.format.open_memmap(program.path("large.npy"), "w+", dtype, (2**35,))
    program.save(q=good(), k=good(), v=good())
    program.refuse(1, (*RUN, flag, "large.npy"), ("large.npy", said), **limits)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_unreadable_file(program):
    program.save(q=good())
    os.chmod(program.path("q.npy"), 0)
    refuse(program, 3, ("q.npy", "Permission denied"), q=None)


@pytest.mark.parametrize("ranks, files, said", (
    (3, {"dout": None}, ("No such file",)),
    (1, {"dout": good((2, 5, 4))}, ("like q",)),
    (1, {"dout": good(dtype="<f4")}, ("one type",)),
    (1, {"dout": good((12, 4))}, ("dimensions",)),
    (1, {"dout": good()[:-1]}, ("truncated",)),
    (3, {"dout": good(), "v": good((2, 6, 5))}, ("[1, 2, 6, 5], with the D of v",)),
))
def test_gradient_of_the_result(program, ranks, files, said):
    refuse(program, ranks, ("dout.npy", *said), ("--dout", "dout.npy"), **files)


@pytest.mark.parametrize("ranks, bounds, said", (
    (3, None, ("No such file",)),
    (1, np.array([0.0, 6.0]), ("integers", "astype")),
    (1, np.array([[0, 6]]), ("reshape",)),
    (1, np.array([], int), ("start with 0",)),
    (1, np.array([1, 6]), ("start with 0",)),
    (1, np.array([0, 4, 3, 6]), ("never decrease",)),
    (1, np.array([0, 5]), ("end with 6",)),
    (1, np.array([0, 7]), ("end with 6",)),
    (1, saved(np.array([0, 6]))[:-1], ("truncated",)),
))
def test_boundaries_of_documents(program, ranks, bounds, said):
    refuse(program, ranks, ("bounds.npy", *said), ("--documents", "bounds.npy"), bounds=bounds)


def intervals(row, **others):
    """Of six queries, where some have other rows."""
    rows = np.tile(np.reshape(row, (-1, 2)), (6, 1, 1))
    for query, other in others.items():
        rows[int(query[1:])] = np.reshape(other, (-1, 2))
    return rows


PAIR, ROW = (0, 1), (0, 1, 3, 4)


@pytest.mark.parametrize("ranks, array, said", (
    (3, None, ("No such file",)),
    (1, intervals(PAIR) * 1.0, ("integers", "astype")),
    *[(1, intervals(PAIR).astype(dtype), ("'int64' where integers are wanted",)) for dtype in ("|i1", "|u1", "<i2", "<u8", "|b1")],
    (1, intervals(PAIR)[:, 0], ("is [6, 2] where [6, m, 2] is due",)),
    (1, intervals(PAIR)[:5], ("is [5, 1, 2] where [6, m, 2] is due",)),
    (1, intervals(ROW, q5=(0, 1, 3, 7)), ("query 5", "3:7", "6 keys")),
    (1, intervals(ROW, q0=(-1, 1, 3, 4)), ("query 0", "-1:1")),
    (1, intervals(ROW, q2=(0, 1, 4, 3)), ("query 2", "4:3")),
    (3, intervals(ROW, q1=(0, 4, 3, 5)), ("query 1", "3:5 begins before 4")),
    (1, intervals(ROW, q1=(3, 4, 0, 1)), ("query 1", "0:1 begins before 4")),
    (1, intervals((0, 1, 1, 2, 2, 3, 3, 4, 4, 5)), ("query 0", "at most four")),
    (1, saved(intervals(ROW))[:-1], ("truncated",)),
))
def test_intervals_of_a_mask(program, ranks, array, said):
    refuse(program, ranks, ("intervals.npy", *said), ("--intervals", "intervals.npy"), intervals=array)


def test_output_of_an_earlier_run_stays(program):
    def files():
        return [(harness.read_bytes(path), os.stat(path).st_mtime_ns)
                for path in (program.path(f"results/{name}") for name in harness.OUTPUTS)]

    program.save(q=good(), k=good(), v=good())
    program.run_well(3, *RUN)
    before = files()
    refuse(program, 3, ("v.npy", "truncated"), v=good()[:-1])
    assert files() == before
