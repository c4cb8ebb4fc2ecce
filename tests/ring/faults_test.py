"""A ring in which a rank stops or fails ends soon, with an error that says where.

Argument: the program faults_program.
"""

import os
import re
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import job  # noqa: E402

program = sys.argv[1]


def run(fault, ranks, timeout):
    return job.Job(f"{fault}, {ranks} ranks", ranks, program, fault, timeout)


def is_gone(pid):
    for _ in range(50):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


for ranks in (1, 2, 3, 4):
    well = run("none", ranks, 30)
    well.expect_code(0)
    well.expect_error_lines()

# A rank that stops: the watchdogs of the others end the job, print the step and the peer that they wait for,
# and no process remains. (If a rank only sleeps, its own watchdog may be the first.)
TIMEOUT = 1  # seconds
WAITING = re.compile(rf"\[rank (\d)\] error: nothing moved for {TIMEOUT} s: exchange, step 1, peer (\d)")
ASLEEP = f"[rank 1] error: nothing moved for {TIMEOUT} s: compute, step 1;"
for fault in ("stop", "sleep"):
    for ranks in (3, 4):
        stuck = run(fault, ranks, TIMEOUT)
        stuck.expect_failure()
        stuck.expect(stuck.seconds >= TIMEOUT, "not before the time-out")
        stuck.expect_within(10)
        waiting = [(int(rank), int(peer)) for rank, peer in WAITING.findall(stuck.err)]
        stuck.expect(waiting or (fault == "sleep" and ASLEEP in stuck.err), "a rank prints its phase, step and peer")
        stuck.expect(all(peer == (rank - 1) % ranks and rank != 1 for rank, peer in waiting), "and names its peer")
        pid = re.search(r"pid (\d+)", stuck.out)
        stuck.expect(pid is not None and is_gone(int(pid[1])), "rank 1 is gone")

# A rank that dies ends the job at once, long before the time-out.
for fault in ("kill", "throw"):
    dead = run(fault, 3, 60)
    dead.expect_within(5)
    if fault == "throw":  # after a kill the exit code is the launcher's, and may be 0: github.com/pmodels/mpich/issues/7057
        dead.expect_failure()
        dead.expect_error("[rank 1] error: a mishap in the middle")

# A message of a wrong length is an error, not a wrong result.
short = run("short", 2, 60)
short.expect_failure()
short.expect_within(5)
short.expect_error("[rank 1] error: ring: rank 0 sent 4 bytes where 8 were due")
long = run("long", 2, 60)
long.expect_failure()
long.expect_within(5)
long.expect_error("[rank 1] error: MPI: Message truncated")
disagree = run("disagree", 2, 60)
disagree.expect_failure()
disagree.expect_within(5)
disagree.expect(re.search(r"\[rank [01]\] error: ", disagree.err) is not None, "a rank complains")

job.finish()
