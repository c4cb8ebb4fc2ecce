"""Runs the program as a user does, under the launcher, with a time limit, and looks at what it leaves behind."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import uuid
from dataclasses import dataclass

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.append(os.path.join(SOURCE, "tests", "python"))  # reference.py
BUILD = os.environ.get("RING_ATTENTION_BUILD", os.path.join(SOURCE, "build", "release"))
PROGRAM = os.path.abspath(os.path.join(BUILD, "ring-attention"))
MPIRUN = os.path.abspath(os.environ.get("MPIRUN", os.path.join(BUILD, "mpirun")))
SLOWNESS = int(os.environ.get("RING_ATTENTION_SLOWNESS", "1"))  # of the program, under sanitizers
LONG = "long" in sys.argv  # more cases, in `make test-long`
OUTPUTS = ("out.npy", "lse.npy", "report.json")

# Every process of a job inherits this variable; its value finds them again in /proc.
MARK = "RING_ATTENTION_TEST_JOB"
HAS_PROC = os.path.exists("/proc/self/environ")


@dataclass
class Result:
    """How a job ended."""

    code: int
    out: str
    err: str
    seconds: float
    survivors: list  # processes that were still there a second after the launcher had gone

    def __str__(self):
        return f"exit code {self.code} after {self.seconds:.1f} s\n-- stdout\n{self.out}\n-- stderr\n{self.err}"


class Job:
    """A running job: `with Job(4, "run", ...) as job`. Leaves no process behind, stopped ones neither.

    `before`: words that start the launcher, or the program where it has none; `hosts`: the launcher's words about hosts.
    """

    def __init__(self, ranks, *words, launcher=True, before=(), hosts=(), environment=None, **popen_words):
        if not os.access(PROGRAM, os.X_OK):
            sys.exit(f"{PROGRAM} is missing: build it, or set RING_ATTENTION_BUILD")
        self.mark = uuid.uuid4().hex
        # Files, not pipes: a survivor that holds a pipe would make us wait for it.
        self._out = tempfile.TemporaryFile()
        self._err = tempfile.TemporaryFile()
        command = [*before, MPIRUN, *hosts, "-n", str(ranks), PROGRAM] if launcher else [*before, PROGRAM]
        self._begin = time.monotonic()
        self._process = subprocess.Popen(
            command + [str(word) for word in words],
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=self._err,
            env={**os.environ, **(environment or {}), MARK: self.mark},
            **popen_words,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for pid in self.processes():
            send(pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        self._out.close()
        self._err.close()

    def processes(self, program_only=False):
        """Process ids of the job, {pid: environment}."""
        found = {}
        for entry in os.listdir("/proc") if HAS_PROC else []:
            if not entry.isdigit():
                continue
            variables = read_bytes(f"/proc/{entry}/environ")
            if f"{MARK}={self.mark}".encode() not in variables.split(b"\0"):
                continue
            if not program_only or runs_program(entry):
                found[int(entry)] = variables
        return found

    def rank(self, number):
        """The process id of one rank, or None."""
        for pid, variables in self.processes(program_only=True).items():
            for name in (b"PMI_RANK", b"PMIX_RANK", b"OMPI_COMM_WORLD_RANK"):
                if name + b"=%d" % number in variables.split(b"\0"):
                    return pid
        return None

    def errors_so_far(self):
        """What it has written to standard error; the job goes on."""
        return os.pread(self._err.fileno(), 1 << 20, 0).decode(errors="replace")

    def ended(self):
        return self._process.poll() is not None

    def until(self, holds, what):
        """Waits until holds() is true; it is an error if the job ends before."""
        limit = time.monotonic() + 60 * SLOWNESS
        while not holds():
            assert not self.ended(), f"ended before {what}"
            assert time.monotonic() < limit, f"never {what}"
            time.sleep(0.002)

    def result(self, limit=60 * SLOWNESS):
        """How it ended: an error if it takes longer than the limit, or leaves a process."""
        result = self.wait(limit)
        assert result.code is not None, f"did not end within {limit} s\n{result}"
        assert result.survivors == [], f"processes were left running\n{result}"
        return result

    def wait(self, limit=60 * SLOWNESS):
        """Waits for the launcher and for every process of the job. A job over its limit has code None."""
        # Popen.wait(limit) looks every 50 ms, and many a job takes no longer than that.
        waiting = threading.Thread(target=self._process.wait, daemon=True)
        waiting.start()
        waiting.join(limit)
        code = self._process.returncode
        seconds = time.monotonic() - self._begin
        survivors = self.processes()
        give_up = time.monotonic() + 1
        while code is not None and survivors and time.monotonic() < give_up:
            time.sleep(0.02)
            survivors = self.processes()
        return Result(code, text_of(self._out), text_of(self._err), seconds, list(survivors))


def read_bytes(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def runs_program(pid):
    """By the file, since its path is another one where the process is in a namespace of mounts of its own."""
    try:
        return os.path.samefile(f"/proc/{pid}/exe", PROGRAM)
    except OSError:
        return False


def send(pid, number):
    """Sends a signal to a process that may be gone, or was never found."""
    if pid is None:
        return
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def text_of(file):
    file.seek(0)
    return file.read().decode(errors="replace")


class Command:
    """`ring-attention` in a folder of the test."""

    def __init__(self, folder):
        self.folder = folder

    def path(self, name):
        return os.path.join(self.folder, name)

    def run_ranks(self, ranks, *words, limit=60 * SLOWNESS, **job_words):
        """Runs `ring-attention WORDS` on some ranks, in the test's folder; nothing may be left running."""
        with Job(ranks, *words, cwd=self.folder, **job_words) as job:
            return job.result(limit)

    def run_well(self, ranks, *words, **job_words):
        result = self.run_ranks(ranks, *words, **job_words)
        assert result.code == 0, str(result)
        return result

    def ends(self, ranks, *words, code=0, said=(), within=60 * SLOWNESS):
        """Runs PROGRAM. `code`: None for any but 0; `said`: all of standard error, or a tuple of parts of it."""
        result = self.run_ranks(ranks, *words)
        print(words, f"on {ranks} ranks:", result, flush=True)
        assert result.code != 0 if code is None else result.code == code, f"exit code {code} is due"
        assert result.err == said if isinstance(said, str) else all(part in result.err for part in said), f"{said} is due"
        assert result.seconds <= within, f"at most {within} s are due"
        return result

    def files_in(self, name="."):
        """Names of all files below a folder of the test."""
        top = self.path(name)
        return sorted(
            os.path.relpath(os.path.join(folder, file), top) for folder, _, files in os.walk(top) for file in files
        )

    def write(self, name, content):
        """A text, or bytes."""
        with open(self.path(name), "wb") as file:
            file.write(content if isinstance(content, bytes) else content.encode())

    def json(self, name):
        return json.loads(read_bytes(self.path(name)))

    def report(self, name="results"):
        return self.json(f"{name}/report.json")

    def save(self, **arrays):
        """Writes name.npy; bytes as they are, and nothing for None."""
        import numpy as np

        for name, array in arrays.items():
            if isinstance(array, bytes):
                self.write(name + ".npy", array)
            elif array is not None:
                np.save(self.path(name), array)

    def array(self, name):
        import numpy as np

        return np.load(self.path(name))

    def bits(self, folder="results", names=None):
        """The bytes of the arrays in a folder."""
        found = [name[:-4] for name in self.files_in(folder) if name.endswith(".npy")]
        return {name: read_bytes(self.path(f"{folder}/{name}.npy")) for name in names or found}

    def assert_refused(self, result, *words, code=2, limit=5 * SLOWNESS):
        """Bad input: one line, from one rank, with all of `words`; soon; nothing on stdout."""
        assert (result.code, result.out) == (code, ""), str(result)
        assert result.err.startswith("error: ") and len(result.err.splitlines()) == 1, str(result)
        assert [word for word in words if word not in result.err] == [], str(result)
        assert result.seconds < limit, str(result)

    def refuse(self, ranks, words, said, **job_words):
        """`ring-attention WORDS` is refused, and writes no file."""
        before = self.files_in()
        self.assert_refused(self.run_ranks(ranks, *words, launcher=ranks > 1, **job_words), *said)
        assert self.files_in() == before


class CommandTest(Command, unittest.TestCase):
    """Has a folder of its own, `self.folder`, which is gone when the test is."""

    maxDiff = None
    __init__ = unittest.TestCase.__init__

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="ring_attention_cli_")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)


def first(number, *cases):
    """The first cases; with the argument `long` all."""
    return cases if LONG else cases[:number]
