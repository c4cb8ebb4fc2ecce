"""Results that cannot be written, and memory that cannot be had: one line, exit code 2, nothing left behind."""

import os
import resource
import shutil
import unittest

import harness

RUN = ("run", "--random", "1,2,12,4", "--out")


def with_little_memory():
    """For preexec_fn: a process may map 1 GiB, which is enough for MPI."""
    resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))


class BadOutputTest(harness.CommandTest):
    def make_file(self, name):
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write("in the way\n")

    def test_a_file_where_the_directory_should_be(self):
        self.make_file("results")
        for ranks in (1, 4):
            self.refuse(ranks, (*RUN, "results"), ("--out results", "Not a directory"))
            self.refuse(ranks, (*RUN, "results/deeper"), ("results/deeper", "Not a directory"))
            self.refuse(ranks, (*RUN, "results/deeper/still"), ("results/deeper/still", "Not a directory"))

    def test_directories_where_the_files_should_be(self):
        for ranks in (1, 3):
            for name in harness.OUTPUTS:
                for full in (name, name + ".part"):
                    with self.subTest(ranks=ranks, name=full):
                        os.makedirs(self.path(f"results{ranks}/{full}/deeper"))
                        self.refuse(ranks, (*RUN, f"results{ranks}"), (full, "directory"))
                        shutil.rmtree(self.path(f"results{ranks}/{full}"))

    @unittest.skipIf(os.geteuid() == 0, "root may write everywhere")
    def test_read_only_directory(self):
        os.mkdir(self.path("results"), 0o555)
        for ranks in (1, 4):
            self.refuse(ranks, (*RUN, "results"), ("results", "Permission denied"))
            self.refuse(ranks, (*RUN, "results/deeper"), ("results/deeper", "Permission denied"))

    @unittest.skipUnless(os.path.isdir("/proc/self/fd"), "no /proc here")
    def test_a_file_system_that_takes_no_files(self):
        self.refuse(3, (*RUN, "/proc/self/results"), ("/proc/self/results",))

    def test_a_name_that_is_too_long(self):
        self.refuse(3, (*RUN, "x" * 300), ("xxx", "too long"))

    def test_a_deep_directory_is_made(self):
        self.run_well(3, *RUN, "a/b/c d")
        self.assertEqual(self.files_in("a/b/c d"), sorted(harness.OUTPUTS))


@unittest.skipIf(harness.SLOWNESS > 1, "the address sanitizer needs more address space than there is")
class MemoryTest(harness.CommandTest):
    """The limit is on the address space, so that the machine itself never runs short."""

    def too_large(self, ranks, random, *words):
        words = ("run", "--random", random, "--out", "results", *words)
        self.refuse(ranks, words, ("memory", "ranks"), preexec_fn=with_little_memory)

    def test_too_large_for_the_shards(self):
        for ranks in (1, 3, 4):
            with self.subTest(ranks=ranks):
                self.too_large(ranks, "1,1,20000000,64")

    def test_far_too_large(self):
        self.too_large(4, "1,1,1000000000,64")

    def test_lists_of_tiles_and_heads(self):
        """Refused before a list is made that is as long as the sequence, or as the heads."""
        self.too_large(1, "1,1,140737488355328,1", "--same-bits")
        self.too_large(3, "1,1,140737488355328,1", "--same-bits", "--tile", "1")
        self.too_large(3, "1,2147483647,1,1", "--alibi", "--parallel", "ulysses")
