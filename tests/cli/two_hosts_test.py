"""Two hosts: two network namespaces and a link between them. What travels over the link, a slow link, a cut one.

Namespaces need Linux, root, and the command `ip`. Elsewhere the test is skipped.
Arguments: names of tests, which run at the same time, as they mostly wait (default: all, one after the other).
"""

import json
import os
import shutil
import subprocess
import sys
import time
import unittest

import harness

TIMEOUT = 2 * harness.SLOWNESS  # for --timeout where the link is cut
END = 5 * harness.SLOWNESS  # for --timeout elsewhere
STEP = 10 * harness.SLOWNESS  # what a step may take on a busy machine
SLACK = 5 * harness.SLOWNESS
# Seconds that build/mpirun leaves the other hosts when one has ended: what it does unless it is told, or fewer.
GRACE = 10 if harness.LONG else 4 * harness.SLOWNESS
DEVICE = "ring0"  # the link's name on both hosts
ADDRESSES = ("10.77.77.1", "10.77.77.2")
MIB = 1 << 20

# In place of ssh: `ssh [OPTION...] HOST COMMAND...`. As ssh does, it waits for a host that it cannot reach.
SSH = f"""#!/bin/sh
while [ "${{1#-}}" != "$1" ]; do shift; done
case $1 in {ADDRESSES[0]}) host=$HOST_A ;; *) host=$HOST_B ;; esac
shift
ip netns exec "$host" sh -c "$*"
while ! ip netns exec "$host" ip link show {DEVICE} | grep -q 'state UP'; do sleep 0.2; done
"""


def run(*words):
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise OSError(f"{' '.join(words)}: {done.stdout.strip()}")
    return done.stdout


class Hosts:
    """Two namespaces; `close` removes them."""

    def __init__(self):
        self.names = tuple(f"ring_attention_{os.getpid()}_{letter}" for letter in "ab")
        try:
            for name in self.names:
                run("ip", "netns", "add", name)
            a, b = self.names
            run(*f"ip link add {DEVICE} netns {a} type veth peer name {DEVICE} netns {b}".split())
            for name, address in zip(self.names, ADDRESSES):
                run("ip", "-n", name, "addr", "add", address + "/24", "dev", DEVICE)
                run("ip", "-n", name, "link", "set", "lo", "up")
                run("ip", "-n", name, "link", "set", DEVICE, "up")
            while any("state UP" not in run("ip", "-n", name, "link", "show", DEVICE) for name in self.names):
                time.sleep(0.05)
        except OSError:
            self.close()
            raise

    def close(self):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)

    def bytes(self):
        """(sent, received) by the first host over the link so far."""
        counters = json.loads(run("ip", "-n", self.names[0], "-s", "-j", "link", "show", DEVICE))[0]["stats64"]
        return counters["tx"]["bytes"], counters["rx"]["bytes"]

    def cut(self):
        run("ip", "-n", self.names[0], "link", "set", DEVICE, "down")

    def slow_down(self, megabits):
        for name in self.names:
            run(*f"tc -n {name} qdisc add dev {DEVICE} root tbf rate {megabits}mbit burst 64kb latency 2s".split())


class TwoHostsTest(harness.CommandTest):
    def setUp(self):
        super().setUp()
        self.hosts = Hosts()
        self.addCleanup(self.hosts.close)
        ssh = self.path("ssh")
        self.write("ssh", SSH)
        os.chmod(ssh, 0o755)
        a, b = ADDRESSES
        self.job_words = {
            "before": ("ip", "netns", "exec", self.hosts.names[0]),
            "hosts": ("-launcher", "ssh", "-launcher-exec", ssh, "-localhost", a, "-hosts", f"{a}:2,{b}:2"),
            "environment": {
                **dict(zip(("HOST_A", "HOST_B"), self.hosts.names)),
                **({} if harness.LONG else {"RING_ATTENTION_GRACE": str(GRACE)}),
                **{"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": DEVICE},  # no shared memory between the hosts
                **{"FI_PROVIDER": "tcp", "FI_TCP_IFACE": DEVICE},
            },
        }

    def ring(self, *words):
        """A report, and what the two directions of the link carried. Each rank sends 1 MiB a hop."""
        before = self.hosts.bytes()
        words = ("run", "--random", "1,4,2048,64", "--check", "--json", "--timeout", END, *words)
        result = self.run_ranks(4, *words, **self.job_words)
        errors = [line for line in result.err.splitlines() if "] error: " in line]
        if result.code != 0 and errors and all("ending together" in line for line in errors):
            # MPICH 4.0 with UCX 1.13: in MPI_Finalize a rank waits for messages of ranks that no longer move any. The
            # results are complete.
            print("MPI_Finalize did not return, as happens over TCP", flush=True)
        else:
            self.assertEqual(result.code, 0, str(result))
        # The report, without what UCX may print around it.
        report = json.loads(result.out[result.out.index("{") : result.out.rindex("}") + 1])
        self.assertTrue(report["ok"], str(result))
        return report, [now - then for now, then in zip(self.hosts.bytes(), before)]

    def assert_carried(self, what, mebibytes):
        """So much, and at most a tenth and 100 KiB more."""
        self.assertGreaterEqual(what, mebibytes * MIB)
        self.assertLessEqual(what, 1.1 * mebibytes * MIB + 100 * 1024)

    def test_ring_over_tcp(self):
        """Ranks 0 and 1, and 2 and 3, share a host: the link carries what ranks 1 and 3 send, three parcels each."""
        _, (there, back) = self.ring()
        print(f"{there} bytes there, {back} back", flush=True)
        self.assert_carried(there, 3)
        self.assert_carried(back, 3)

    def test_hops_that_a_mask_saves(self):
        """Causal: rank 2 needs the parcels of ranks 0 and 1. No rank needs one that rank 3 could send on."""
        _, (there, back) = self.ring("--causal")
        print(f"{there} bytes there, {back} back", flush=True)
        self.assert_carried(there, 2)
        self.assert_carried(back, 0)

    def test_slow_link(self):
        """100 Mbit/s: 3 MiB take 0.25 s, less what passes in a burst."""
        try:
            self.hosts.slow_down(100)
        except OSError as problem:
            self.skipTest(f"this kernel makes no slow links: {problem}")
        report, (there, _) = self.ring()
        print(f"forward {report['forward_seconds']:.2f} s", flush=True)
        self.assert_carried(there, 3)
        self.assertGreater(report["forward_seconds"], 0.2)

    def test_cut_link(self):
        """Every rank of both hosts ends by itself, and so does the launcher, which cannot reach the other host."""
        words = ("run", "--random", "1,4,16384,64", "--progress", "always", "--timeout", TIMEOUT, "--out", "results")
        with harness.Job(4, *words, cwd=self.folder, **self.job_words) as job:
            job.until(lambda: ", step " in job.errors_so_far(), "it reported a step")
            self.assertEqual(len(job.processes(program_only=True)), 4)
            self.hosts.cut()
            cut = time.monotonic()
            while job.processes(program_only=True) and time.monotonic() < cut + 120 * harness.SLOWNESS:
                time.sleep(0.05)
            ranks_ended = time.monotonic() - cut
            result = job.result(GRACE + 60 * harness.SLOWNESS)
            ended = time.monotonic() - cut
        print(f"the ranks ended after {ranks_ended:.1f} s, the job after {ended:.1f} s", flush=True)
        self.assertNotEqual(result.code, 0, str(result))
        self.assertRegex(result.err, rf"\[rank [01]\] error: nothing moved for {TIMEOUT} s: ")
        self.assertIn("is a link cut?", result.err)
        self.assertLess(ranks_ended, STEP + TIMEOUT + SLACK)
        self.assertLess(ended, STEP + TIMEOUT + GRACE + SLACK)
        self.assertFalse(os.path.exists(self.path("results/report.json")))


def reason_to_skip():
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "network namespaces need Linux and root"
    if not shutil.which("ip"):
        return "the command ip (iproute2) is not here"
    version = subprocess.run([harness.MPIRUN, "--version"], stdout=subprocess.PIPE, text=True).stdout
    if "HYDRA" not in version:
        return "the launcher is not MPICH's, whose flags this test knows"
    try:
        Hosts().close()
    except OSError as problem:
        return f"no network namespaces here: {problem}"
    return None


if __name__ == "__main__":
    reason = reason_to_skip()
    if reason:
        print("skipped:", reason)
        sys.exit(77)
    if len(sys.argv) > 2 and not harness.LONG:
        jobs = [subprocess.Popen([sys.executable, __file__, name]) for name in sys.argv[1:]]
        sys.exit(max([job.wait() for job in jobs]))
    unittest.main(argv=[word for word in sys.argv if word != "long"], verbosity=2)
