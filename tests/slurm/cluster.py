"""A Slurm of two nodes on this machine: munged, slurmctld and two slurmd, with files and ports of their own."""

import os
import pwd
import secrets
import shutil
import socket
import subprocess
import time

NODES = ("a", "b")
CPUS = 4  # of a node: what the configuration says counts, not what this machine has
DAEMONS = ("munged", "slurmctld", "slurmd")
START = 30  # seconds until the nodes must be idle

# No cgroups and no change of affinity: this runs in a container and under any user.
CONFIGURATION = """ClusterName=ring
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=pmi2
SlurmdParameters=config_overrides
NodeName=a NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs={cpus}
NodeName=b NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs={cpus}
PartitionName=all Nodes=ALL Default=YES
"""


def missing():
    """Commands of Slurm and munge that this machine lacks."""
    return [name for name in (*DAEMONS, "srun", "sbatch", "setpriv") if not path_of(name)]


def path_of(command):
    return shutil.which(command, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


def free_ports(count):
    """Ports that nothing listens on now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Cluster:
    """`with Cluster(folder) as cluster`: Slurm's commands work in the environment `cluster.environment`."""

    def __init__(self, folder):
        self.folder = folder
        self._daemons = []
        # Nothing of a job in which this test may run itself.
        self.environment = {name: value for name, value in os.environ.items()
                            if not name.startswith(("SLURM", "SRUN_", "SBATCH_", "PMI"))}
        self.environment["SLURM_CONF"] = os.path.join(folder, "slurm.conf")

    def __enter__(self):
        os.chmod(self.folder, 0o755)  # munged demands that all may reach its socket
        for name in ("munge", "state", *(f"spool-{node}" for node in NODES)):
            os.mkdir(os.path.join(self.folder, name), 0o755)
        munge = os.path.join(self.folder, "munge")
        with open(os.open(f"{munge}/key", os.O_CREAT | os.O_WRONLY, 0o600), "wb") as file:
            file.write(secrets.token_bytes(1024))
        with open(self.environment["SLURM_CONF"], "w", encoding="utf-8") as file:
            file.write(CONFIGURATION.format(folder=self.folder, host=socket.gethostname().partition(".")[0], cpus=CPUS,
                                            user=pwd.getpwuid(os.geteuid()).pw_name, ports=free_ports(3)))
        try:
            self._start("munged", "--foreground", f"--key-file={munge}/key", f"--socket={munge}/socket",
                        f"--pid-file={munge}/pid", f"--log-file={munge}/log", f"--seed-file={munge}/seed")
            self._start("slurmctld", "-D")
            for node in NODES:
                self._start("slurmd", "-D", "-N", node)
            self._wait_for_nodes()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        """Ends all jobs, then the daemons."""
        if len(self._daemons) > 1:
            jobs = self._output("squeue", "--noheader", "--format=%A").split()
            if jobs:
                self._output("scancel", "--signal=KILL", *jobs)
                self._output("scancel", *jobs)
            limit = time.monotonic() + 10
            while jobs and self._output("squeue", "--noheader").strip() and time.monotonic() < limit:
                time.sleep(0.2)
        for daemon in reversed(self._daemons):
            daemon.terminate()
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        self._daemons.clear()

    def logs(self):
        """The last lines of every log, for a report of a failure."""
        found = []
        for name in ("munge/log", "slurmctld.log", *(f"slurmd-{node}.log" for node in NODES)):
            try:
                with open(os.path.join(self.folder, name), encoding="utf-8", errors="replace") as file:
                    found += [f"-- {name}", *file.read().splitlines()[-15:]]
            except OSError:
                found.append(f"-- no {name}")
        return "\n".join(found)

    def _start(self, *words):
        """Starts a daemon that ends when this process ends, however it does."""
        self._daemons.append(subprocess.Popen(["setpriv", "--pdeathsig", "TERM", path_of(words[0]), *words[1:]],
                                              env=self.environment, stdin=subprocess.DEVNULL,
                                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))

    def _output(self, *words):
        try:
            return subprocess.run(words, env=self.environment, capture_output=True, text=True, timeout=10).stdout
        except subprocess.TimeoutExpired:
            return ""

    def _wait_for_nodes(self):
        limit = time.monotonic() + START
        while self._output("sinfo", "--noheader", "--Node", "--format=%T").split() != ["idle"] * len(NODES):
            if time.monotonic() > limit or any(daemon.poll() is not None for daemon in self._daemons):
                raise OSError(f"the nodes did not become idle\n{self.logs()}")
            time.sleep(0.2)
