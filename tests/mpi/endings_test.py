"""How a job ends: together with code 2 and one line when all ranks know why, at once when one rank alone knows.

Argument: the program endings_program.
"""

import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import job  # noqa: E402

program = sys.argv[1]


def run(how, ranks=3):
    return job.Job(f"{how}, {ranks} ranks", ranks, program, how)


for ranks in (1, 3):
    well = run("well", ranks)
    well.expect_code(0)
    well.expect_error_lines()

run("one-bad-code").expect_code(1)

# Known to all: rank 0 prints one line, all finalise, code 2.
agreed = run("agreed")
agreed.expect_code(2)
agreed.expect_error_lines("error: rank 1 cannot read q.npy")

different = run("different")
different.expect_code(2)
different.expect_error_lines("error: the ranks disagree on seq: rank 0 has 5, rank 2 has 4")

promise = run("promise")
promise.expect_code(2)
promise.expect(len(promise.err.splitlines()) == 1, "one line")
promise.expect_error("error: there are 3 ranks where the caller promises 4")

# Known to one rank: it prints its number and ends the job, while the others wait for it.
for how, message in (
    ("alone", "only here [endings_program.cpp:"),
    ("alone-input", "a file only rank 1 reads"),
    ("alone-foreign", "from the standard library"),
    ("too-long", "MPI: Message truncated"),
):
    alone = run(how)
    alone.expect_failure()
    alone.expect_within(5)
    alone.expect_error(f"[rank 1] error: {message}")
    alone.expect("[rank 0] error" not in alone.err, "no other rank complains")

number = run("alone-number")  # not even an exception class: no message, but an end
number.expect_failure()
number.expect_within(5)

run("too-short").expect_code(0)  # MPI allows it; OddEvenRing does not: see tests/ring

job.finish()
