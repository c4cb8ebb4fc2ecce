"""A rank that is killed or stopped: the job ends, says where, and leaves the results of earlier runs alone."""

import collections
import json
import os
import random
import re
import signal
import time
import unittest

import harness

SHORT = ("run", "--random", "1,1,6,4", "--out", "results")
SLACK = 5 * harness.SLOWNESS  # what a job may take to end, in seconds
STEP = 10 * harness.SLOWNESS  # what a step may take on a busy machine: ranks that compute are no sign of a stopped one


@unittest.skipUnless(harness.HAS_PROC, "ranks are found through /proc, which is not here")
class DeadRankTest(harness.CommandTest):
    WORK = 5  # seconds of a long job: when rank 0 first reports a step, after one second, it is far from its end
    TIMEOUT = 1 * harness.SLOWNESS  # for --timeout
    measured = {}  # {words of a job: seconds of 2048 tokens}

    def setUp(self):
        super().setUp()
        self.run_well(2, *SHORT)
        self.earlier = self.results()

    def results(self):
        """Name, time and content of all that counts as a result."""
        found = []
        for name in harness.OUTPUTS:
            path = self.path("results/" + name)
            found.append((name, os.stat(path).st_mtime_ns, harness.read_bytes(path)))
        return found

    def work(self, *more, seconds=None):
        """The words of a job of about `seconds`, by default WORK, on 4 ranks, however fast the machine and the build are."""
        words = ("run", "--seed", "2", *more, "--progress", "always", "--random")
        if words not in self.measured:
            report = json.loads(self.run_well(4, *words, "1,8,2048,64", "--json").out)
            self.measured[words] = report["forward_seconds"] + report["backward_seconds"]
        tokens = int(2048 * ((seconds or self.WORK) / self.measured[words]) ** 0.5)  # the work grows with their square
        print(f"{self.measured[words]:.2f} s for 2048 tokens: jobs of {tokens} tokens", flush=True)
        return (*words, f"1,8,{tokens},64", "--out", "results")

    def start(self, ranks, *words):
        job = harness.Job(ranks, *words, cwd=self.folder)
        self.addCleanup(job.__exit__)
        return job

    def reported_step(self, job):
        """Waits until rank 0 has reported a step, which it does from the first second on. The newest; None after the last."""
        limit = time.monotonic() + 30 * harness.SLOWNESS
        while True:
            ended = job.ended()
            steps = re.findall(r"[a-z ]+(?:, step (\d+))?[^\r]* of \d+ steps", job.errors_so_far())  # '' outside a step
            if ended or any(steps):
                return None if ended or not steps[-1] else int(steps[-1])
            self.assertLess(time.monotonic(), limit, "no step was reported")
            time.sleep(0.02)

    def start_early(self, ranks, victim, *more, before, seconds=WORK):
        """A job that has reported a step and is in one less than `before`, and the process id of the victim.

        The machine may have been busier when the work was measured than it is now. A job that is beyond that step is left
        to its end, and one of twice the work takes its place.
        """
        for times in (1, 2, 4, 8):
            job = self.start(ranks, *self.work(seconds=times * seconds), *more)
            self.reported_step(job)
            pid = job.rank(victim)  # takes a while on a busy machine
            step = self.reported_step(job)
            if pid is not None and step is not None and step < before:
                return job, pid
            result = job.wait()
            self.assertEqual(result.code, 0, f"ended before it was struck\n{result}")
            self.earlier = self.results()
        self.fail(f"no job was found in a step before {before}")

    def strike(self, job, pid, number):
        """Sends a signal to one rank, and returns how the job ended and how long that took."""
        self.assertIsNotNone(pid, "the rank is not there")
        begin = time.monotonic()
        os.kill(pid, number)
        result = job.result(STEP + self.TIMEOUT + 30)
        taken = time.monotonic() - begin
        if number != signal.SIGKILL:  # then the code is the launcher's, and may be 0: github.com/pmodels/mpich/issues/7057
            self.assertNotEqual(result.code, 0, str(result))
        return result, taken

    def assert_nothing_happened(self):
        """Earlier results are as they were, and the next run works."""
        self.assertEqual(self.results(), self.earlier)
        self.run_well(3, "run", "--random", "1,1,9,4", "--check", "--out", "results")
        self.assertEqual(self.files_in("results"), sorted(harness.OUTPUTS))
        self.earlier = self.results()

    def test_killed(self):
        for ranks, victim in ((4, 0), (3, 2), (1, 0)):
            with self.subTest(ranks=ranks, victim=victim):
                job, pid = self.start_early(ranks, victim, before=ranks)
                _, taken = self.strike(job, pid, signal.SIGKILL)
                self.assertLess(taken, SLACK)
                self.assert_nothing_happened()

    def test_stopped(self):
        # A rank sends its last K,V at the beginning of the last step but one. The victim has to be stopped before that, and
        # may be one step ahead of rank 0.
        for ranks, victim in ((4, 0), (5, 2)):
            with self.subTest(ranks=ranks, victim=victim):
                job, pid = self.start_early(ranks, victim, "--timeout", str(self.TIMEOUT), before=ranks - 3, seconds=8)
                result, taken = self.strike(job, pid, signal.SIGSTOP)
                self.assertLess(taken, STEP + self.TIMEOUT + SLACK)
                self.assertRegex(result.err, rf"\[rank [0-9]\] error: nothing moved for {self.TIMEOUT} s: .*step [0-9]")
                self.assertRegex(result.err, r"\[rank [0-9]\] error: .*peer [0-9]")
                self.assert_nothing_happened()

    def test_slow_is_not_dead(self):
        """Steps that take longer than --timeout are no reason to end, as long as tiles are done."""
        result = self.run_well(1, *self.work(seconds=2), "--timeout", str(0.5 * harness.SLOWNESS))
        self.assertNotIn("error", result.err)


class RandomMomentTest(DeadRankTest):
    """Slow: run with the argument `long`. RING_ATTENTION_TEST_SEED makes other moments."""

    test_killed = test_stopped = None

    TIMEOUT = 2 * harness.SLOWNESS
    ROUNDS = 25  # of each kind

    def setUp(self):
        super().setUp()
        seed = os.environ.get("RING_ATTENTION_TEST_SEED", "1")
        print(f"RING_ATTENTION_TEST_SEED={seed}", flush=True)
        self.source = random.Random(seed)

    def moment(self, earliest, latest):
        """(ranks, victim, after how many seconds)"""
        ranks = self.source.choice((3, 4, 7))
        return ranks, self.source.randrange(ranks), self.source.uniform(earliest, latest)

    def long_job(self, number, earliest, limit, where):
        """Strikes at a random step. `where` finds in what the job said where it stood."""
        words = self.work("--backward")
        places = []
        for _ in range(2 * self.ROUNDS):
            ranks, victim, after = self.moment(earliest, 0.9 * self.WORK)
            with self.subTest(ranks=ranks, victim=victim, after=after):
                job = self.start(ranks, *words, "--timeout", str(self.TIMEOUT))
                time.sleep(after)
                while job.rank(victim) is None and not job.ended():
                    time.sleep(0.005)
                begin = time.monotonic()
                harness.send(job.rank(victim), number)
                result = job.result(STEP + self.TIMEOUT + 30)
                self.assertLess(time.monotonic() - begin, limit)
                self.assert_old_or_new(result, number)
                if result.code != 0:  # else it was through before it was struck
                    places.append("?")
                    places[-1] = where(result)
                self.run_well(2, *SHORT)
            if len(places) == self.ROUNDS:
                break
        for place, times in sorted(collections.Counter(places).items()):
            print(f"{times:3d} at {place}", flush=True)
        self.assertEqual(len(places), self.ROUNDS)

    def where_killed(self, result):
        """MPICH's launcher kills the other ranks before they can print: rank 0's last progress has to do."""
        self.assertRegex(result.out + result.err, r"signal 9|Killed")
        lines = re.findall(r"([a-z ]+(?:, step \d+)?)(?:, peer \d+)? of \d+ steps, \d+ s", result.err)
        self.assertTrue(lines, str(result))
        return lines[-1]

    def where_stopped(self, result):
        """The watchdogs of the ranks that wait say where."""
        lines = re.findall(rf"\[rank [0-9?]\] error: nothing moved for {self.TIMEOUT} s: ([^;]*);", result.err)
        self.assertTrue(lines, str(result))
        return re.sub(", peer .*", "", lines[0])

    def test_long_job_killed(self):
        """Not before the first line of progress, after one second, can have come through."""
        self.long_job(signal.SIGKILL, 2, SLACK, self.where_killed)

    def test_long_job_stopped(self):
        self.long_job(signal.SIGSTOP, 0, STEP + self.TIMEOUT + SLACK, self.where_stopped)

    def short_job(self, number):
        for _ in range(20):
            ranks, victim, after = self.moment(0, 0.8)
            with self.subTest(ranks=ranks, victim=victim, after=after):
                job = harness.Job(ranks, *SHORT, "--seed", "2", "--timeout", "1", cwd=self.folder)
                self.addCleanup(job.__exit__)
                time.sleep(after)
                pid = job.rank(victim)
                if pid is not None:
                    harness.send(pid, number)
                begin = time.monotonic()
                result = job.wait(30)
                if result.code is None and number == signal.SIGSTOP:
                    # Stopped when all others had ended: no rank waits for it, and its work is done.
                    self.assertEqual(list(job.processes(program_only=True)), [pid], str(result))
                    harness.send(pid, signal.SIGCONT)
                    result = job.wait(30)
                else:
                    self.assertLess(time.monotonic() - begin, 1 + SLACK)
                self.assertIsNotNone(result.code, str(result))
                self.assertEqual(result.survivors, [], str(result))
                self.assert_old_or_new(result, number)
                self.run_well(2, *SHORT)

    def assert_old_or_new(self, result, number):
        """The job may have succeeded before it was hit; a report always means a complete set of files."""
        if not os.path.exists(self.path("results/report.json")):
            if number != signal.SIGKILL:
                self.assertNotEqual(result.code, 0, str(result))
            return
        kinds = set()
        for name, _, earlier in self.earlier[:2]:
            kinds.add("old" if harness.read_bytes(self.path("results/" + name)) == earlier else "new")
        kinds.add("old" if self.report().get("seed") == 1 else "new")
        self.assertEqual(len(kinds), 1, f"{kinds}\n{result}")
        if result.code == 0:
            self.assertEqual(kinds, {"new"}, str(result))

    def test_slow_is_not_dead(self):
        for partition in ("all-gather", "ulysses"):
            words = self.work("--parallel", partition, "--backward")
            result = self.run_well(1, *words, "--timeout", str(0.5 * harness.SLOWNESS))
            self.assertNotIn("error", result.err)

    def test_stopped_before_an_all_to_all(self):
        for partition in ("all-gather", "ulysses"):
            job = self.start(4, *self.work("--parallel", partition, "--backward"), "--timeout", str(self.TIMEOUT))
            job.until(lambda: "compute" in job.errors_so_far(), "it computed")
            result, taken = self.strike(job, job.rank(2), signal.SIGSTOP)
            self.assertLess(taken, self.WORK + STEP + self.TIMEOUT + SLACK)
            self.assertRegex(result.err, rf"\[rank [0-9]\] error: nothing moved for {self.TIMEOUT} s: ")
            self.assert_nothing_happened()

    def test_short_job_killed(self):
        self.short_job(signal.SIGKILL)

    def test_short_job_stopped(self):
        self.short_job(signal.SIGSTOP)


def load_tests(loader, *_):
    """`dead_rank_test.py long` runs the random moments, without it the others."""
    return loader.loadTestsFromTestCase(RandomMomentTest if harness.LONG else DeadRankTest)
