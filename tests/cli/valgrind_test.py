"""Short runs on 3 ranks under valgrind: no memory is read before it is written, none out of bounds, none lost.

Argument: a C++ compiler, for a program that valgrind has to find fault with.
"""

import os
import shutil
import subprocess
import sys
import tempfile

import harness

FOUND = 9  # the exit code that says so
VALGRIND = (
    "valgrind",
    "--quiet",
    f"--error-exitcode={FOUND}",
    "--leak-check=full",
    "--show-leak-kinds=definite",
    "--errors-for-leak-kinds=definite",
    f"--suppressions={harness.SOURCE}/tests/support/valgrind.supp",
)
RUNS = (
    # both transports, a parcel that MPI buffers and one (64 KiB) that it does not, all that masks, uneven shards
    "--random 1,4,23,8 --kv-heads 2 --backward --causal --placement zigzag --check",
    "--random 2,2,24,8 --backward --window 5,2 --alibi --placement striped --transport odd-even --check",
    "--random 1,1,385,64 --backward --check",
    "--random 1,2,2,3 --backward --transport odd-even --check",  # fewer tokens than ranks
    "--random 1,2,13,8 --backward --causal --engine readable --tile 4 --check",
)
FAULTY = """
#include <cstdlib>
#include <cstring>
int main(int count, char**) {
  int* numbers = static_cast<int*>(std::malloc(2 * sizeof(int)));
  std::memset(numbers, 0, static_cast<std::size_t>(count) * sizeof(int));  // one of two
  return numbers[1] == 5 ? 1 : 0;
}
"""


def finds_faults(folder):
    """Does valgrind work here, and find what is to be found?"""
    source, program = os.path.join(folder, "faulty.cpp"), os.path.join(folder, "faulty")
    with open(source, "w", encoding="utf-8") as file:
        file.write(FAULTY)
    subprocess.run([sys.argv[1], "-g", "-O0", source, "-o", program], check=True)
    done = subprocess.run([*VALGRIND, program], capture_output=True, text=True)
    return done.returncode == FOUND and "uninitialised" in done.stderr and "definitely lost" in done.stderr


if shutil.which("valgrind") is None:
    print("skipped: valgrind is not here. Remedy: apt-get install valgrind")
    sys.exit(77)
with tempfile.TemporaryDirectory() as scratch:
    if not finds_faults(scratch):
        print("valgrind finds no fault in a faulty program: it proves nothing here")
        sys.exit(1)
    for words in RUNS:
        arguments = ("run", *words.split(), "--timeout", "120", "--out", os.path.join(scratch, "results"))
        with harness.Job(3, *arguments, launcher=False, before=(harness.MPIRUN, "-n", "3", *VALGRIND)) as job:
            result = job.result(150)
            assert result.code == 0, str(result)
