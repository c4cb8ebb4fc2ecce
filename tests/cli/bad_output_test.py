"""Results that cannot be written, and memory that cannot be had: one line, exit code 2, nothing left behind."""

import os
import resource

import harness
import pytest

RUN = ("run", "--random", "1,2,12,4", "--out")


def with_little_memory():
    """For preexec_fn: a process may map 1 GiB, which is enough for MPI."""
    resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))


@pytest.mark.parametrize("ranks", (1, 4))
@pytest.mark.parametrize("out, said", (("results", "--out results"), ("results/deeper", "results/deeper"),
                                       ("results/deeper/still", "results/deeper/still")))
def test_a_file_where_the_directory_should_be(program, ranks, out, said):
    program.write("results", "in the way\n")
    program.refuse(ranks, (*RUN, out), (said, "Not a directory"))


@pytest.mark.parametrize("ranks", (1, 3))
@pytest.mark.parametrize("name", [name + part for name in harness.OUTPUTS for part in ("", ".part")])
def test_directories_where_the_files_should_be(program, ranks, name):
    os.makedirs(program.path(f"results/{name}/deeper"))
    program.refuse(ranks, (*RUN, "results"), (name, "directory"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
@pytest.mark.parametrize("ranks", (1, 4))
@pytest.mark.parametrize("out", ("results", "results/deeper"))
def test_read_only_directory(program, ranks, out):
    os.mkdir(program.path("results"), 0o555)
    program.refuse(ranks, (*RUN, out), (out, "Permission denied"))


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="no /proc here")
def test_a_file_system_that_takes_no_files(program):
    program.refuse(3, (*RUN, "/proc/self/results"), ("/proc/self/results",))


def test_a_name_that_is_too_long(program):
    program.refuse(3, (*RUN, "x" * 300), ("xxx", "too long"))


def test_a_deep_directory_is_made(program):
    program.run_well(3, *RUN, "a/b/c d")
    assert program.files_in("a/b/c d") == sorted(harness.OUTPUTS)


@pytest.mark.skipif(harness.SLOWNESS > 1, reason="the address sanitizer needs more address space than there is")
@pytest.mark.parametrize("ranks, random, words", (
    *[(ranks, "1,1,20000000,64", "") for ranks in (1, 3, 4)],  # the shards
    (4, "1,1,1000000000,64", ""),
    # Refused before a list is made that is as long as the sequence, or as the heads.
    (1, "1,1,140737488355328,1", "--same-bits"),
    (3, "1,1,140737488355328,1", "--same-bits --tile 1"),
    (3, "1,2147483647,1,1", "--alibi --parallel ulysses"),
))
def test_too_large(program, ranks, random, words):
    """The limit is on the address space, so that the machine itself never runs short."""
    program.refuse(ranks, ("run", "--random", random, "--out", "results", *words.split()), ("memory", "ranks"),
                   preexec_fn=with_little_memory)
