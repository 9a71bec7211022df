#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Time from `kill -9` of a random rank to the next step of the restarted ranks, on two ranks: examples/02_mnist under
`lockstep run --max-restarts`, which saves every step and resumes from its checkpoint, and its Python counterpart under
torchrun, which starts again at step 1, in alternating runs."""
import os
import pathlib
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import bench_support as bench

GOAL_SECONDS = 1.5


class RunFailed(Exception):
    """The ranks did not restart."""


def parse_flags():
    parser = bench.recording_parser(__doc__, rounds=50, timeout=60)
    parser.add_argument("--peer-every", type=int, default=5, help="kills under lockstep run per kill under torchrun")
    parser.add_argument("--data-dir", type=pathlib.Path, default=bench.ROOT / ".data/mnist")
    return parser.parse_args()


def commands(flags, checkpoints):
    training = ["--data-dir", str(flags.data_dir), "--epochs", "100"]
    return {
        "lockstep run": [bench.program("lockstep"), "run", "--nproc-per-node", "2", "--max-restarts", "3",
                         bench.program("02_mnist"), *training, "--interval", "1", "--checkpoints", checkpoints, "--resume"],
        "torchrun": [bench.PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
                     "--max-restarts", "3", bench.twin("mnist")[1], *training, "--log-interval", "1"],
    }


def environment_of(pid):
    try:
        entries = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    return dict(entry.split(b"=", 1) for entry in entries if b"=" in entry)


def marked(marker):
    """(pid, environment) of every process of the round."""
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            variables = environment_of(entry.name)
            if variables.get(b"BENCH_MARKER") == marker.encode():
                yield int(entry.name), variables


def pid_of(rank, marker):
    for pid, variables in marked(marker):
        if variables.get(b"RANK") == str(rank).encode():
            return pid
    sys.exit(f"rank {rank} was not found")


def kill_all(marker):
    """torchrun leaves hanging ranks behind."""
    for pid, _ in marked(marker):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def await_line(stream, pattern, errors):
    """Reads up to the line that matches, and returns the match."""
    for line in stream:
        if match := re.search(pattern, line):
            return match
    errors.seek(0)
    raise RunFailed(f"the run ended before a line with {pattern}:\n{errors.read()}")


def await_restart(name, stream, killed_after, errors):
    """Under lockstep run the first step must follow the last one that was saved."""
    if name == "torchrun":
        await_line(stream, r"step 1/", errors)
        return
    saved = int(await_line(stream, r"resumed after step (\d+)", errors)[1])
    step = int(await_line(stream, r"step (\d+): ", errors)[1])
    if saved < killed_after or step != saved + 1:
        raise RunFailed(f"killed after step {killed_after}, but resumed after step {saved} with step {step}")


def seconds_to_restart(name, command, timeout, victim):
    marker = f"{os.getpid()}.{time.monotonic_ns()}"
    environment = os.environ | {"BENCH_MARKER": marker, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryFile("w+") as errors, subprocess.Popen(
            command, env=environment, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=errors) as process:
        watchdog = threading.Timer(timeout, kill_all, [marker])
        watchdog.start()
        try:
            killed_after = int(await_line(process.stdout, r"step (5)\b", errors)[1])
            pid = pid_of(victim, marker)
            start = time.perf_counter()
            os.kill(pid, signal.SIGKILL)
            await_restart(name, process.stdout, killed_after, errors)
            return time.perf_counter() - start
        finally:
            watchdog.cancel()
            process.terminate()
            process.stdout.close()
            time.sleep(1)  # lets the launcher end its ranks
            kill_all(marker)
            process.wait()


def median_of(values):
    """The median of the runs that restarted; infinite without any."""
    back = [value for value in values if value is not None]
    return statistics.median(back) if back else float("inf")


def main():
    flags = parse_flags()
    chance = random.Random(0)
    seconds = {"lockstep run": [], "torchrun": []}
    for number in range(-1, flags.rounds):
        for name in seconds:
            if name == "torchrun" and number >= 0 and number % flags.peer_every:
                continue
            bench.progress(f"round {number + 1} of {flags.rounds}: {name}")
            try:
                with tempfile.TemporaryDirectory() as checkpoints:
                    taken = seconds_to_restart(name, commands(flags, checkpoints)[name], flags.timeout,
                                               chance.randrange(2))
            except RunFailed as failure:
                if name != "torchrun":
                    sys.exit(str(failure))
                taken = None
            if number >= 0:  # the first run of each fills the page cache
                seconds[name].append(taken)
    medians = {name: median_of(values) for name, values in seconds.items()}
    rows = []
    for name, values in seconds.items():
        back = [value for value in values if value is not None]
        rows.append([name, back or None, len(values), len(back)])
    table = bench.table("kill -9 of a random rank of two (MNIST) to the next step", ["launcher", "seconds", "runs", "recovered"], rows)
    met = "met" if medians["lockstep run"] <= GOAL_SECONDS else "missed"
    bench.report(flags, {"seconds": seconds, "median_seconds": medians}, {"restart": [table]},
                 [f"lockstep run: goal of {GOAL_SECONDS} s {met}; torchrun takes "
                  f"{medians['torchrun'] / medians['lockstep run']:.1f} times as long"])


if __name__ == "__main__":
    main()
