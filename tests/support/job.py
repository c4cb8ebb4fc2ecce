"""Starts MPI programs for the script tests: how the job ended, what it printed, how long it took."""

import os
import signal
import subprocess
import sys
import time

SLOWNESS = int(os.environ.get("RING_ATTENTION_SLOWNESS", "1"))  # of the programs, under sanitizers

failures = []


class Job:
    """One job of `ranks` ranks, run to its end. It is killed after `limit` seconds, which is a failure."""

    def __init__(self, name, ranks, program, *arguments, limit=60 * SLOWNESS):
        self.name = name
        command = [os.environ["MPIRUN"], "-n", str(ranks), program, *map(str, arguments)]
        begin = time.monotonic()
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            self.out, self.err = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)  # the launcher ends its ranks
            self.out, self.err = process.communicate()
            self.expect(False, f"ends within {limit} s")
        self.seconds = time.monotonic() - begin
        self.code = process.returncode

    def expect(self, holds, what):
        print(f"{'ok  ' if holds else 'FAIL'} {self.name}: {what}", flush=True)
        if not holds:
            failures.append(self.name)
            print(f"  code {getattr(self, 'code', None)}\n  stdout: {self.out}\n  stderr: {self.err}", flush=True)

    def expect_code(self, code):
        self.expect(self.code == code, f"exit code {code}")

    def expect_failure(self):
        self.expect(self.code != 0, "exit code is not 0")

    def expect_within(self, seconds):
        self.expect(self.seconds <= seconds, f"ends within {seconds} s (took {self.seconds:.1f} s)")

    def expect_error(self, text):
        self.expect(text in self.err, f"stderr has: {text}")

    def expect_error_lines(self, *lines):
        """Standard error is exactly these lines."""
        self.expect(self.err.splitlines() == list(lines), f"stderr is: {' | '.join(lines)}")


def finish():
    sys.exit(1 if failures else 0)
