"""A ring in which a rank stops or fails ends soon, with an error that says where, and leaves no process.

Argument: the program faults_program.
"""

import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cli"))
import harness

harness.PROGRAM = sys.argv[1]
ends = harness.Command(os.getcwd()).ends

for ranks in (1, 2, 3, 4):
    ends(ranks, "none", 30, said="")

# A rank that stops: the watchdogs of the others end the job, and print the step and the peer that they wait for. (If a rank
# only sleeps, its own watchdog may be the first.)
TIMEOUT = 1  # seconds
WAITING = re.compile(rf"\[rank (\d)\] error: nothing moved for {TIMEOUT} s: exchange, step 1, peer (\d)")
ASLEEP = f"[rank 1] error: nothing moved for {TIMEOUT} s: compute, step 1;"
for fault in ("stop", "sleep"):
    for ranks in (3, 4):
        stuck = ends(ranks, fault, TIMEOUT, code=None, within=10)
        assert stuck.seconds >= TIMEOUT, "not before the time-out"
        waiting = [(int(rank), int(peer)) for rank, peer in WAITING.findall(stuck.err)]
        assert waiting or (fault == "sleep" and ASLEEP in stuck.err), "a rank prints its phase, step and peer"
        assert all(peer == (rank - 1) % ranks and rank != 1 for rank, peer in waiting), "and names its peer"

# A rank that dies ends the job at once, long before the time-out. After a kill the exit code is the launcher's, and may be 0:
# github.com/pmodels/mpich/issues/7057
assert harness.Command(os.getcwd()).run_ranks(3, "kill", 60).seconds <= 5
ends(3, "throw", 60, code=None, said=("[rank 1] error: a mishap in the middle",), within=5)

# A message of a wrong length is an error, not a wrong result.
ends(2, "short", 60, code=None, said=("[rank 1] error: ring: rank 0 sent 4 bytes where 8 were due",), within=5)
ends(2, "long", 60, code=None, said=("[rank 1] error: MPI: Message truncated",), within=5)
disagree = ends(2, "disagree", 60, code=None, within=5)
assert re.search(r"\[rank [01]\] error: ", disagree.err), "a rank complains"
