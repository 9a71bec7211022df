# SPDX-License-Identifier: BSD-3-Clause
"""What the run_*.py scripts share. Standard library only."""
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
# scripts/bench.sh sets both.
BUILD = pathlib.Path(os.environ.get("LOCKSTEP_BUILD_DIR", ROOT / "build" / "release"))
PYTHON = os.environ.get("LOCKSTEP_PYTHON", sys.executable)


def program(name):
    path = BUILD / "bin" / name
    if not path.exists():
        sys.exit(f"{path} is not built: run this through scripts/bench.sh, or set LOCKSTEP_BUILD_DIR")
    return str(path)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def rank_environment(rank, world_size, port):
    own = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": rank, "WORLD_SIZE": world_size,
           "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": world_size, "GROUP_RANK": 0, "OMP_NUM_THREADS": 1,
           "GLOO_SOCKET_IFNAME": "lo"}
    return os.environ | {name: str(value) for name, value in own.items()}


def pinned(command, core):
    return ["taskset", "-c", str(core), *command]


def cores(count):
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < count:
        sys.exit(f"{count} ranks need {count} cores of their own; this process may use {len(usable)}")
    return usable[:count]


def run_ranks(command, world_size, timeout):
    """Runs the command once a rank, each pinned to a core of its own with one thread. Returns rank 0's stdout. Ends
    the script, showing what was printed, when a rank fails or the time is up."""
    port = free_port()
    with tempfile.TemporaryFile("w+") as errors:
        ranks = [
            subprocess.Popen(pinned(command, core), env=rank_environment(rank, world_size, port), text=True,
                             stdin=subprocess.DEVNULL, stderr=errors,
                             stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL)
            for rank, core in enumerate(cores(world_size))
        ]
        try:
            output = ranks[0].communicate(timeout=timeout)[0]
            failed = [f"rank {rank} ended with {process.wait(timeout=timeout)}"
                      for rank, process in enumerate(ranks) if process.wait(timeout=timeout)]
        except subprocess.TimeoutExpired:
            failed = [f"not finished after {timeout} s"]
        finally:
            for process in ranks:
                process.kill()
                process.wait()
        if failed:
            errors.seek(0)
            sys.exit(f"{' '.join(command)}: {', '.join(failed)}\n{errors.read()}")
    return output


def wall_seconds(command, timeout):
    """How long the command takes from start to end; ends the script, showing its output, when it fails."""
    start = time.perf_counter()
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, timeout=timeout)
    seconds = time.perf_counter() - start
    if done.returncode:
        sys.exit(f"{' '.join(command)}: ended with {done.returncode}\n{done.stdout}")
    return seconds


def goal(ratio, limit):
    return f"{ratio:.3f} (goal: at most {limit}, {'met' if ratio <= limit else 'missed'})"
