"""How a job ends: together with code 2 and one line when all ranks know why, at once when one rank alone knows.

Argument: the program endings_program.
"""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cli"))
import harness

harness.PROGRAM = sys.argv[1]
ends = harness.Command(os.getcwd()).ends

for ranks in (1, 3):
    ends(ranks, "well", said="")
ends(3, "one-bad-code", code=1)

# Known to all: rank 0 prints one line, all finalise, code 2.
ends(3, "agreed", code=2, said="error: rank 1 cannot read q.npy\n")
ends(3, "different", code=2, said="error: the ranks disagree on seq: rank 0 has 5, rank 2 has 4\n")
promise = ends(3, "promise", code=2, said=("error: there are 3 ranks where the caller promises 4",))
assert len(promise.err.splitlines()) == 1

# Known to one rank: it prints its number and ends the job, while the others wait for it.
for how, message in (
    ("alone", "only here [endings_program.cpp:"),
    ("alone-input", "a file only rank 1 reads"),
    ("alone-foreign", "from the standard library"),
    ("too-long", "MPI: Message truncated"),
):
    alone = ends(3, how, code=None, said=(f"[rank 1] error: {message}",), within=5)
    assert "[rank 0] error" not in alone.err, "no other rank complains"
ends(3, "alone-number", code=None, within=5)  # not even an exception class: no message, but an end
ends(3, "too-short")  # MPI allows it; OddEvenRing does not: see tests/ring
