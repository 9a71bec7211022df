#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""From `kill -9` of a random rank to the next step of the ranks that are started again: examples/02_mnist on two ranks
under `lockstep run --max-restarts`, and its Python twin under torchrun, in turn."""
import argparse
import json
import os
import pathlib
import random
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
    """The ranks did not come back."""


def parse_flags():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50, help="kills under lockstep run; their median counts")
    parser.add_argument("--peer-every", type=int, default=5, help="one kill under torchrun for so many of ours")
    parser.add_argument("--timeout", type=int, default=60, help="seconds that one round may take")
    parser.add_argument("--data-dir", type=pathlib.Path, default=bench.ROOT / ".data/mnist")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    return parser.parse_args()


def commands(flags):
    training = ["--data-dir", str(flags.data_dir), "--epochs", "100", "--log-interval", "1"]
    return {
        "lockstep run": [bench.program("lockstep"), "run", "--nproc-per-node", "2", "--max-restarts", "3",
                         bench.program("02_mnist"), *training],
        "torchrun": [bench.PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
                     "--max-restarts", "3", str(bench.ROOT / "benchmarks/pytorch/mnist.py"), *training],
    }


def environment_of(pid):
    try:
        entries = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    return dict(entry.split(b"=", 1) for entry in entries if b"=" in entry)


def marked(marker):
    """(pid, environment) of every process that belongs to the round."""
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
    """torchrun leaves ranks behind when it ends while they hang."""
    for pid, _ in marked(marker):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def await_step(stream, step, errors):
    """Reads up to the line of that step."""
    for line in stream:
        if f"step {step}/" in line:
            return
    errors.seek(0)
    raise RunFailed(f"the run ended before step {step}:\n{errors.read()}")


def seconds_to_restart(command, timeout, victim):
    marker = f"{os.getpid()}.{time.monotonic_ns()}"
    environment = os.environ | {"BENCH_MARKER": marker, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryFile("w+") as errors, subprocess.Popen(
            command, env=environment, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=errors) as process:
        watchdog = threading.Timer(timeout, kill_all, [marker])
        watchdog.start()
        try:
            await_step(process.stdout, 5, errors)
            pid = pid_of(victim, marker)
            start = time.perf_counter()
            os.kill(pid, signal.SIGKILL)
            await_step(process.stdout, 1, errors)
            return time.perf_counter() - start
        finally:
            watchdog.cancel()
            process.terminate()
            process.stdout.close()
            time.sleep(1)  # to end in peace
            kill_all(marker)
            process.wait()


def median_of(values):
    """Of those that came back; infinite when none did."""
    back = [value for value in values if value is not None]
    return statistics.median(back) if back else float("inf")


def main():
    flags = parse_flags()
    chance = random.Random(0)
    seconds = {name: [] for name in commands(flags)}
    for number in range(-1, flags.rounds):
        for name, command in commands(flags).items():
            if name == "torchrun" and number >= 0 and number % flags.peer_every:
                continue
            try:
                taken = seconds_to_restart(command, flags.timeout, chance.randrange(2))
            except RunFailed as failure:
                if name != "torchrun":
                    sys.exit(str(failure))
                taken = None
            if number >= 0:  # the first run of each fills the page cache
                seconds[name].append(taken)
    medians = {name: median_of(values) for name, values in seconds.items()}
    if flags.json:
        print(json.dumps({"seconds": seconds, "median_seconds": medians}))
        return
    for name, values in seconds.items():
        back = [value for value in values if value is not None]
        spread = f"{min(back):.3f} to {max(back):.3f}" if back else "none came back"
        print(f"{name:14}{medians[name]:7.3f} s  ({len(back)} of {len(values)} came back: {spread})")
    met = "met" if medians["lockstep run"] <= GOAL_SECONDS else "missed"
    print(f"lockstep run: goal of {GOAL_SECONDS} s {met}; torchrun takes "
          f"{medians['torchrun'] / medians['lockstep run']:.1f} times as long")


if __name__ == "__main__":
    main()
