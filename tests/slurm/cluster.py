# SPDX-License-Identifier: BSD-3-Clause
"""A SLURM cluster of two nodes on this host: munged, slurmctld and two slurmd, with all their files in a folder."""

import getpass
import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import guard

# The ranks look for the first node by its name. These names lead to this host without a name service.
NODES = ("127.0.0.1", "127.0.0.2")
DEADLINE = 180.0
MARKER = "LOCKSTEP_TEST_MARKER"

# Only what works without cgroups, which a container may not have. The shell of salloc is a step because many sites
# have it so; without --pty, because there is no terminal here. The number of the first job decides the ports of the
# ranks, and another cluster may run on this host.
CONFIGURATION = """\
ClusterName=lockstep
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/linear
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=1
MpiDefault=none
FirstJobId={first_job}
KillWait=10
LaunchParameters=use_interactive_step
InteractiveStepOptions="--interactive --preserve-env /bin/sh"
SlurmdParameters=config_overrides
NodeName=127.0.0.[1-2] NodeHostname={host} Port=[{first_port},{second_port}] CPUs=4
PartitionName=all Nodes=ALL Default=YES State=UP
"""


class HeldPort:
    """A reserved free port, on which a server that allows address reuse can still listen."""

    def __init__(self):
        self.socket = socket.socket()
        self.socket.bind(("", 0))
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.number = self.socket.getsockname()[1]


def program(name):
    """Daemons are not on every user's PATH."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if found is None:
        raise RuntimeError(f"{name} is missing; scripts/setup.sh --tests installs it")
    return found


def slurm_release():
    version = subprocess.run([program("slurmd"), "-V"], capture_output=True, text=True, check=True).stdout
    return int(re.search(r"(\d+)\.", version)[1])


def wait_until(what, condition):
    end = time.monotonic() + DEADLINE
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {DEADLINE:.0f} s: {what}")
        time.sleep(0.02)


def without_launchers(env):
    """These tests may themselves be run by SLURM or a launcher."""
    foreign = ("SLURM", "SBATCH_", "SRUN_", "SALLOC_", "OMPI_", "PMI")
    names = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"}
    return {name: value for name, value in env.items() if not name.startswith(foreign) and name not in names}


class Cluster:
    def __init__(self):
        self.temporary = tempfile.TemporaryDirectory(prefix="lockstep-slurm-")
        self.folder = Path(self.temporary.name)
        self.marker = f"{os.getpid()}.{random.getrandbits(64):x}"
        self.env = without_launchers(os.environ) | {"SLURM_CONF": str(self.folder / "slurm.conf")}
        self.ports = [HeldPort() for _ in range(3)]
        self.guard = None

    def __enter__(self):
        self.write_configuration()
        command = [sys.executable, "-B", guard.__file__]
        self.guard = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, env=self.env)
        try:
            self.start_daemons()
        except BaseException as error:
            logs = self.logs()
            self.__exit__()
            raise RuntimeError(f"SLURM did not start: {error}\n{logs}") from error
        return self

    def __exit__(self, *_):
        self.guard.stdin.close()
        self.guard.wait()
        self.temporary.cleanup()

    def write_configuration(self):
        controller, first, second = (port.number for port in self.ports)
        text = CONFIGURATION.format(
            host=socket.gethostname().split(".")[0],
            user=getpass.getuser(),
            folder=self.folder,
            controller_port=controller,
            first_port=first,
            second_port=second,
            first_job=random.randrange(1, 60_000_000),
        )
        (self.folder / "slurm.conf").write_text(text)
        if slurm_release() >= 23:  # nothing here needs cgroups, but slurmd does not start without them
            (self.folder / "cgroup.conf").write_text("CgroupPlugin=disabled\n")
        (self.folder / "state").mkdir()
        key = self.folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))

    def start_daemons(self):
        paths = {"key-file": "key", "pid-file": "pid", "log-file": "log", "seed-file": "seed", "socket": "socket"}
        files = [f"--{option}={self.folder}/munge.{ending}" for option, ending in paths.items()]
        self.start_daemon("munged", "--foreground", "--force", *files)
        wait_until("munged makes its socket", (self.folder / "munge.socket").exists)
        self.start_daemon("slurmctld", "-D", "-i")
        for node in NODES:
            self.start_daemon("slurmd", "-D", "-N", node)
        self.wait_until_idle()

    def start_daemon(self, name, *arguments):
        log = self.folder / f"{name}-{arguments[-1]}.out" if name == "slurmd" else self.folder / f"{name}.out"
        self.guard.stdin.write(json.dumps([str(log), program(name), *arguments]) + "\n")
        self.guard.stdin.flush()

    def logs(self):
        return "\n".join(f"--- {log.name}\n{log.read_text()[-3000:]}" for log in sorted(self.folder.glob("*.out")))

    def wait_until_idle(self):
        def idle():
            states = subprocess.run(
                ["sinfo", "--noheader", "--Node", "--format=%T"], env=self.env, capture_output=True, text=True
            )
            return states.stdout.split() == ["idle"] * len(NODES)

        wait_until("all nodes are idle", idle)

    def start(self, *command):
        """A client of the cluster; everything that it starts on the nodes inherits the marker."""
        return Client(command, self.env | {MARKER: self.marker})

    def run(self, *command, text=None):
        with self.start(*command) as client:
            client.out, client.err = client.communicate(text)
        return client

    def marked_processes(self):
        wanted = f"{MARKER}={self.marker}".encode()
        return [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/environ") if wanted in environment(path)]

    def wait_until_nothing_is_left(self):
        wait_until("no process of the job is left", lambda: not self.marked_processes())
        self.wait_until_idle()


class Client(subprocess.Popen):
    """A process that is killed when it does not end in time, or when this process dies."""

    def __init__(self, command, env):
        pipe = subprocess.PIPE
        command = guard.dying_with_parent([str(word) for word in command])
        super().__init__(command, env=env, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        self.watchdog = threading.Timer(DEADLINE, self.kill)
        self.watchdog.start()

    def __exit__(self, *error):
        try:
            super().__exit__(*error)
        finally:
            self.watchdog.cancel()


def environment(path):
    try:
        return path.read_bytes().split(b"\0")
    except OSError:  # gone meanwhile
        return []
