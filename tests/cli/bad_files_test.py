"""Files that cannot be used: one line that names the file and the remedy, exit code 2, and nothing written."""

import os
import resource
import unittest

import harness
import npy
from attention import random_values

SHAPE = (2, 6, 4)
FILES = ("--q", "q.npy", "--k", "k.npy", "--v", "v.npy")


def good(shape=SHAPE, dtype="<f8"):
    """The bytes of a file that is as it should be."""
    return npy.header(shape, dtype) + npy.pack(random_values(shape, 1), dtype)


def dictionary(text, elements=48):
    return npy.header((), dictionary=text) + bytes(8 * elements)


def described(dtype, bytes_an_element=8):
    return npy.header(SHAPE, dtype) + bytes(48 * bytes_an_element)


# What is wrong, the bytes of the file, and what the line must say.
BROKEN_FILES = (
    ("int64", described("<i8"), ("integers", "astype")),
    ("int32", described("<i4", 4), ("integers", "astype")),
    ("bool", described("|b1", 1), ("|b1", "astype")),
    ("complex", described("<c16", 16), ("<c16", "astype")),
    ("long double", described("<f16", 16), ("<f16", "astype")),
    ("big-endian", described(">f8"), ("big-endian", "astype")),
    ("big-endian half", described(">f2", 2), ("big-endian", "astype")),
    ("objects", described("|O"), ("Python objects", "astype")),
    ("text", described("<U4", 16), ("<U4", "astype")),
    ("structured", dictionary("{'descr': [('x', '<f8')], 'fortran_order': False, 'shape': (2, 6, 4)}"), ("structured",)),
    ("Fortran order", npy.header(SHAPE, fortran=True) + bytes(384), ("Fortran order", "ascontiguousarray")),
    ("D = 0", npy.header((6, 0)), ("extent of 0",)),
    ("S = 0", npy.header((0, 4)), ("extent of 0",)),
    ("H = 0", npy.header((0, 6, 4)), ("extent of 0",)),
    ("no dimension", npy.header(()) + bytes(8), ("[S, D]", "reshape")),
    ("one dimension", npy.header((6,)) + bytes(48), ("(6,)", "[S, D]", "reshape")),
    ("five dimensions", npy.header((1, 1, 1, 6, 4)) + bytes(192), ("(1, 1, 1, 6, 4)", "[B, H, S, D]", "reshape")),
    ("negative extent", npy.header((2, -6, 4)) + bytes(384), ("negative",)),
    ("enormous extents", npy.header((2**40, 2**40)), ("extents",)),
    ("extent past 64 bits", npy.header((2**70, 4)), ("extent",)),
    ("a size that is not there", npy.header((2**20, 2**10)) + bytes(384), ("truncated", "missing")),
    ("empty", b"", ("q.npy",)),
    ("cut in the magic", good()[:4], ("q.npy",)),
    ("cut after the magic", good()[:6], ("truncated",)),
    ("cut in the version", good()[:7], ("truncated",)),
    ("cut in the length", good()[:9], ("truncated",)),
    ("cut in the header", good()[:50], ("truncated",)),
    ("cut before the payload", good()[:128], ("truncated", "384", "missing")),
    ("cut in the payload", good()[:300], ("truncated", "missing")),
    ("one byte short", good()[:-1], ("truncated", "1 of its 512 bytes")),
    ("a byte too many", good() + b"\0", ("follow the array",)),
    ("two arrays", good() + good(), ("follow the array",)),
    ("version 9", good()[:6] + b"\x09\0" + good()[8:], ("version 9.0",)),
    ("version 0", good()[:6] + b"\0\0" + good()[8:], ("version 0.0",)),
    ("not a .npy file", b"1.0 2.0 3.0\n" * 40, ("not a .npy file", "np.save")),
    ("an .npz archive", b"PK\x03\x04" + bytes(500), (".npz", "np.save")),
    ("a header of binary rubbish", npy.header((), dictionary="\x01\n\x02" * 20), ("malformed",)),
    ("a header without a shape", dictionary("{'descr': '<f8', 'fortran_order': False}"), ("'shape' is missing",)),
    ("a header that runs code", dictionary("__import__('os').abort()"), ("malformed",)),
)

# Shapes of q, k and v, and what the line must say.
SHAPES_THAT_DISAGREE = (
    ((2, 6, 4), (2, 6, 4), (2, 7, 4), ("k.npy", "v.npy", "B, H and S of k and v must be the same")),
    ((2, 6, 4), (2, 6, 4), (2, 7, 5), ("k.npy", "v.npy", "B, H and S of k and v must be the same")),
    ((2, 6, 4), (2, 6, 4), (1, 6, 4), ("k.npy", "v.npy", "B, H and S of k and v must be the same")),
    ((2, 2, 6, 4), (3, 2, 6, 4), (3, 2, 6, 4), ("q.npy", "k.npy", "B must be the same")),
    ((2, 6, 4), (2, 6, 5), (2, 6, 5), ("q.npy", "k.npy", "D must be the same")),
    ((6, 4), (1, 6, 4), (1, 6, 4), ("q.npy", "k.npy", "2 dimensions", "3")),
    ((1, 6, 4), (1, 6, 4), (6, 4), ("q.npy", "v.npy", "3 dimensions", "2")),
    ((3, 6, 4), (2, 6, 4), (2, 6, 4), ("q.npy", "k.npy", "heads of k must divide")),
    ((2, 6, 4), (4, 6, 4), (4, 6, 4), ("q.npy", "k.npy", "heads of k must divide")),
)


class BadFilesTest(harness.CommandTest):
    def write(self, **files):
        for name in "qkv":
            with open(self.path(name + ".npy"), "wb") as file:
                file.write(files.get(name, good()))

    def refuse(self, ranks, *said, words=(), **job_words):
        """Runs on the three files; the job must be refused and leave no file but them."""
        before = self.files_in()
        result = self.run_ranks(ranks, "run", *FILES, *words, "--out", "results", launcher=ranks > 1, **job_words)
        self.assert_refused(result, *said)
        self.assertEqual(self.files_in(), before)

    def test_each_file_missing(self):
        for ranks in (1, 4):
            for name in "qkv":
                with self.subTest(ranks=ranks, missing=name):
                    self.write()
                    os.remove(self.path(name + ".npy"))
                    self.refuse(ranks, f"{name}.npy", "No such file")

    def test_directory_instead_of_a_file(self):
        self.write()
        os.remove(self.path("k.npy"))
        os.mkdir(self.path("k.npy"))
        for ranks in (1, 3):
            self.refuse(ranks, "k.npy", "directory")

    def test_other_things_instead_of_a_file(self):
        self.write()
        os.remove(self.path("v.npy"))
        os.mkfifo(self.path("v.npy"))
        self.refuse(1, "v.npy")
        os.remove(self.path("v.npy"))
        os.symlink("/dev/zero", self.path("v.npy"))
        self.refuse(1, "v.npy")

    def test_names_that_lead_nowhere(self):
        self.write()
        os.symlink("loop.npy", self.path("loop.npy"))
        long_name = "x" * 300
        for flag in ("--documents", "--sink", "--bias", "--dout"):
            with self.subTest(flag=flag):
                self.refuse(1, "loop.npy", "Too many levels of symbolic links", words=(flag, "loop.npy"))
        for ranks in (1, 3):
            self.refuse(ranks, long_name, "File name too long", words=("--sink", long_name))
            self.refuse(ranks, "--trace", long_name, "File name too long", words=("--trace", long_name))
            self.refuse(ranks, "--trace", "loop.npy", words=("--trace", "loop.npy/deeper"))

    def test_sparse_files(self):
        """Of 256 GiB, refused by the header or by the memory that they would take."""
        self.write()
        npy.write_sparse(self.path("large.npy"), (2**35,))
        self.refuse(1, "large.npy", "34359738368 numbers for 2 query heads", words=("--sink", "large.npy"))
        npy.write_sparse(self.path("large.npy"), (2**35,), "<i8")
        with_little_memory = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_AS, (2**34, 2**34))}
        if harness.SLOWNESS == 1:  # a sanitizer needs more address space than that
            self.refuse(1, "large.npy", "bytes, more than", words=("--documents", "large.npy"), **with_little_memory)

    @unittest.skipIf(os.geteuid() == 0, "root may read every file")
    def test_unreadable_file(self):
        self.write()
        os.chmod(self.path("q.npy"), 0)
        self.refuse(3, "q.npy", "Permission denied")

    def test_each_broken_file_on_its_own(self):
        for i, (what, data, said) in enumerate(BROKEN_FILES):
            name = "qkv"[i % 3]
            with self.subTest(what, file=name):
                self.write(**{name: data})
                self.refuse(1, f"{name}.npy: ", *(word.replace("q.npy", name + ".npy") for word in said))

    def test_some_broken_files_on_several_ranks(self):
        every, ranks_of = (1, (3, 4, 7)) if harness.LONG else (3, (2, 3))
        for i, (what, data, said) in enumerate(BROKEN_FILES[::every]):
            ranks = ranks_of[i % len(ranks_of)]
            with self.subTest(what, ranks=ranks):
                self.write(q=data)
                self.refuse(ranks, "q.npy: ", *said)

    def test_shapes_that_disagree(self):
        for i, (q, k, v, said) in enumerate(SHAPES_THAT_DISAGREE):
            with self.subTest(q=q, k=k, v=v):
                self.write(q=good(q), k=good(k), v=good(v))
                self.refuse((1, 1, 4)[i % 3], *said)

    def test_gradient_of_a_result_as_wide_as_v(self):
        self.write(v=good((2, 6, 5)))
        with open(self.path("dout.npy"), "wb") as file:
            file.write(good())
        self.refuse(3, "dout.npy", "[1, 2, 6, 5], with the D of v", words=("--dout", "dout.npy"))

    def test_types_that_disagree(self):
        self.write(v=good(dtype="<f4"))
        self.refuse(3, "q.npy", "v.npy", "<f8", "<f4", "one type")
        self.write(q=good(dtype="<f4"), k=good(dtype="<f2"), v=good(dtype="<f4"))
        self.run_well(3, "run", *FILES, "--check")  # all float32 arithmetic: nothing is lost

    def test_gradient_of_the_result(self):
        for what, data, said in (
            ("missing", None, ("No such file",)),
            ("another shape", good((2, 5, 4)), ("like q",)),
            ("another type", good(dtype="<f4"), ("one type",)),
            ("other dimensions", good((12, 4)), ("dimensions",)),
            ("truncated", good()[:-1], ("truncated",)),
        ):
            with self.subTest(what):
                self.write()
                if data is not None:
                    with open(self.path("dout.npy"), "wb") as file:
                        file.write(data)
                self.refuse(3 if what == "missing" else 1, "dout.npy", *said, words=("--dout", "dout.npy"))

    def test_boundaries_of_documents(self):
        def boundaries(*values, dtype="<i8"):
            return npy.header((len(values),), dtype) + npy.pack(values, dtype)

        for what, data, said in (
            ("missing", None, ("No such file",)),
            ("floating point", boundaries(0.0, 6.0, dtype="<f8"), ("integers", "astype")),
            ("two dimensions", npy.header((1, 2), "<i8") + npy.pack((0, 6), "<i8"), ("reshape",)),
            ("empty", boundaries(), ("start with 0",)),
            ("not from 0", boundaries(1, 6), ("start with 0",)),
            ("decreasing", boundaries(0, 4, 3, 6), ("never decrease",)),
            ("too short", boundaries(0, 5), ("end with 6",)),
            ("too long", boundaries(0, 7), ("end with 6",)),
            ("truncated", boundaries(0, 6)[:-1], ("truncated",)),
        ):
            with self.subTest(what):
                self.write()
                if data is not None:
                    with open(self.path("boundaries.npy"), "wb") as file:
                        file.write(data)
                self.refuse(3 if what == "missing" else 1, "boundaries.npy", *said, words=("--documents", "boundaries.npy"))

    def test_intervals_of_a_mask(self):
        def array(shape, *values, dtype="<i8"):
            return npy.header(shape, dtype) + npy.pack(values, dtype)

        row = (0, 1, 3, 4)
        for what, data, said in (
            ("missing", None, ("No such file",)),
            ("floating point", array((6, 1, 2), *(0.0, 1.0) * 6, dtype="<f8"), ("integers", "astype")),
            *((dtype, npy.header((6, 1, 2), dtype) + bytes(12 * size), ("'int64' where integers are wanted",))
              for dtype, size in (("|i1", 1), ("|u1", 1), ("<i2", 2), ("<u8", 8), ("|b1", 1))),
            ("two dimensions", array((6, 2), *(0, 1) * 6), ("is [6, 2] where [6, m, 2] is due",)),
            ("another length", array((5, 1, 2), *(0, 1) * 5), ("is [5, 1, 2] where [6, m, 2] is due",)),
            ("beyond the keys", array((6, 2, 2), *row * 5, 0, 1, 3, 7), ("query 5", "3:7", "6 keys")),
            ("below the keys", array((6, 2, 2), -1, 1, 3, 4, *row * 5), ("query 0", "-1:1")),
            ("backwards", array((6, 2, 2), *row * 2, 0, 1, 4, 3, *row * 3), ("query 2", "4:3")),
            ("overlapping", array((6, 2, 2), *row, 0, 4, 3, 5, *row * 4), ("query 1", "3:5 begins before 4")),
            ("unordered", array((6, 2, 2), *row, 3, 4, 0, 1, *row * 4), ("query 1", "0:1 begins before 4")),
            ("five a query", array((6, 5, 2), *(0, 1, 1, 2, 2, 3, 3, 4, 4, 5) * 6), ("query 0", "at most four")),
            ("truncated", array((6, 2, 2), *row * 6)[:-1], ("truncated",)),
        ):
            with self.subTest(what):
                self.write()
                if data is not None:
                    with open(self.path("intervals.npy"), "wb") as file:
                        file.write(data)
                ranks = 3 if what in ("missing", "overlapping") else 1
                self.refuse(ranks, "intervals.npy", *said, words=("--intervals", "intervals.npy"))

    def test_output_of_an_earlier_run_stays(self):
        self.write()
        self.run_well(3, "run", *FILES, "--out", "results")
        before = [(self.read(name), os.stat(self.path("results/" + name)).st_mtime_ns) for name in harness.OUTPUTS]
        self.write(v=good()[:-1])
        self.refuse(3, "v.npy", "truncated")
        after = [(self.read(name), os.stat(self.path("results/" + name)).st_mtime_ns) for name in harness.OUTPUTS]
        self.assertEqual(before, after)

    def read(self, name):
        with open(self.path("results/" + name), "rb") as file:
            return file.read()


if __name__ == "__main__":
    harness.main()
