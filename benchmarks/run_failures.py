#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Time from the SIGKILL of a random rank at a random moment to the error that names it, on every survivor: on the idle
machine, and beside processes that keep every core busy. And the time in which the ranks form their group again."""
import argparse
import contextlib
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import bench_support as bench

GOAL_MS = 100
FORMING_GOAL_MS = 5
LIMIT = 120


def parse_flags():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100, help="kills, on the idle and on the busy machine each")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--busy", type=int, default=5, help="busy processes a core")
    parser.add_argument("--formings", type=int, default=200)
    parser.add_argument("--forming-ranks", type=int, default=4)
    parser.add_argument("--backend", default="shm")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


@contextlib.contextmanager
def busy(count):
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def start(flags, meeting, ranks, formings=0):
    return [subprocess.Popen([*bench.benchmark("lost_rank"), "--meeting", meeting, "--backend", flags.backend,
                              "--rank", str(rank), "--ranks", str(ranks), "--formings", str(formings)],
                             text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             env=os.environ | {"LOCKSTEP_LOG_LEVEL": "error", "OMP_NUM_THREADS": "1"})
            for rank in range(ranks)]


def delays(flags, chance):
    """Milliseconds from one kill to each survivor's error."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = start(flags, str(pathlib.Path(folder) / "meeting"), flags.ranks)
        try:
            for rank in ranks:
                if rank.stdout.readline() != "ready\n":
                    sys.exit("a rank did not start")
            time.sleep(chance.uniform(0, 0.03))
            victim = chance.randrange(flags.ranks)
            killed = time.monotonic_ns()
            os.kill(ranks[victim].pid, signal.SIGKILL)
            outputs = [rank.communicate(timeout=LIMIT)[0].split("\n", 1) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
    for error in (pair[1] for pair in outputs if len(pair) == 2):
        if f"rank {victim} (pid {ranks[victim].pid}" not in error:
            sys.exit(f"a survivor's error does not name rank {victim}: {error}")
    return [(int(outputs[rank][0]) - killed) / 1e6 for rank in range(flags.ranks) if rank != victim]


def measure(flags, name):
    chance = random.Random(flags.seed)
    taken = []
    for number in range(flags.rounds):
        if number % 10 == 0:
            bench.progress(f"{name}: kill {number + 1} of {flags.rounds}")
        taken += delays(flags, chance)
    taken.sort()
    percent = {share: taken[min(len(taken) - 1, len(taken) * share // 100)] for share in (90, 99)}
    met = "met" if taken[-1] <= GOAL_MS else f"missed in {sum(delay > GOAL_MS for delay in taken)} of {len(taken)}"
    print(f"{name:<8} {flags.rounds} kills: median {statistics.median(taken):.1f} ms, 90 % {percent[90]:.1f}, "
          f"99 % {percent[99]:.1f}, longest {taken[-1]:.1f} (goal: at most {GOAL_MS}, {met})", flush=True)


def measure_forming(flags):
    """reconfigure() of a group whose ranks hold 100 MB of registered memory each; of each forming, the slowest rank."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = start(flags, str(pathlib.Path(folder) / "meeting"), flags.forming_ranks, flags.formings)
        columns = [[float(line) for line in rank.communicate(timeout=LIMIT)[0].split()] for rank in ranks]
    taken = sorted(max(row) for row in zip(*columns, strict=True))
    if len(taken) != flags.formings:
        sys.exit("a rank failed")
    median = statistics.median(taken)
    print(f"forms the group of {flags.forming_ranks} ranks again: median {median:.2f} ms, 90 % {taken[len(taken) * 9 // 10]:.2f}, "
          f"longest {taken[-1]:.2f} (goal: median below {FORMING_GOAL_MS}, {'met' if median < FORMING_GOAL_MS else 'missed'})",
          flush=True)


def main():
    flags = parse_flags()
    cores = len(os.sched_getaffinity(0))
    print(f"{flags.ranks} ranks, {flags.backend}, {cores} cores, load before {os.getloadavg()[0]:.1f}")
    measure_forming(flags)
    measure(flags, "idle")
    with busy(flags.busy * cores):
        measure(flags, "busy")


if __name__ == "__main__":
    main()
