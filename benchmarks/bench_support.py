# SPDX-License-Identifier: BSD-3-Clause
"""What the run_*.py scripts share. Standard library only."""
import os
import pathlib
import subprocess
import sys
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


def cores(count):
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < count:
        sys.exit(f"{count} ranks need {count} cores of their own; this process may use {len(usable)}")
    return usable[:count]


def pinned(command):
    """The command of one rank, bound to the core that $CORES has for it."""
    script = 'exec taskset -c "$(echo $CORES | cut -d " " -f $((LOCAL_RANK + 1)))" "$@"'
    return ["sh", "-c", script, "sh", *command]


def launch(launcher, command, world_size, timeout):
    """Runs the command on so many ranks under "torchrun" or "lockstep run", each rank with one thread and a core of
    its own. Returns what they printed; ends the script, showing it, when they fail or the time is up."""
    start = {"torchrun": [PYTHON, "-m", "torch.distributed.run", "--standalone", "--no-python"],
             "lockstep run": [program("lockstep"), "run"]}[launcher]
    whole = [*start, "--nproc-per-node", str(world_size), *pinned(command)]
    own = {"OMP_NUM_THREADS": "1", "CORES": " ".join(map(str, cores(world_size)))}
    return finished(whole, timeout, os.environ | own)


def finished(command, timeout, environment=None, stderr=subprocess.STDOUT):
    """Runs the command to its end and returns its output (with stderr=None its stdout alone, while the user sees the
    rest); ends the script, showing it, when the command fails."""
    with subprocess.Popen(command, env=environment, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=stderr) as process:
        try:
            output = process.communicate(timeout=timeout)[0]
        except subprocess.TimeoutExpired:
            process.terminate()  # launchers take their ranks along
            sys.exit(f"{' '.join(command)}: not finished after {timeout} s\n{process.communicate()[0]}")
    if process.returncode:
        sys.exit(f"{' '.join(command)}: ended with {process.returncode}\n{output}")
    return output


def wall_seconds(command, timeout):
    start = time.perf_counter()
    finished(command, timeout)
    return time.perf_counter() - start


def goal(ratio, limit):
    return f"{ratio:.3f} (goal: at most {limit}, {'met' if ratio <= limit else 'missed'})"
