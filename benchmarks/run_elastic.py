#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Time from `kill -9` of a random rank of four until all ranks go on: examples/06_elastic under `lockstep run --on-loss replace`, with
and without a spare process, many kills in one run; under `--on-loss shrink`, where the others go on without it, one kill a run; and its
counterpart under torchrun, which starts all ranks again at step 1, one kill a run. At "all continue" every rank has met the others in the
new group and restored its state; "next step" is the first one that is committed."""
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

import bench_support as bench
from run_restart import RunFailed, await_line, kill_all

RANKS = 4
GOALS = {"replacement": 0.5, "spare": 0.15, "shrink": 0.05}


def parse_flags():
    parser = bench.recording_parser(__doc__, rounds=50, timeout=60)
    parser.add_argument("--peer-rounds", type=int, default=10, help="kills under torchrun")
    parser.add_argument("--data-dir", type=pathlib.Path, default=bench.ROOT / ".data/mnist")
    return parser.parse_args()


class Run:
    """A training that is killed at the end of the scope."""

    def __init__(self, command, timeout):
        self.marker = f"{os.getpid()}.{time.monotonic_ns()}"
        self.errors = tempfile.TemporaryFile("w+")
        environment = os.environ | {"BENCH_MARKER": self.marker, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(command, cwd=bench.ROOT, env=environment, text=True, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=self.errors)
        self.watchdog = threading.Timer(timeout, kill_all, [self.marker])
        self.watchdog.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.watchdog.cancel()
        self.process.terminate()
        self.process.stdout.close()
        self.process.wait()
        kill_all(self.marker)

    def find(self, pattern):
        return await_line(self.process.stdout, pattern, self.errors)


def elastic_seconds(flags, options, kills, chance):
    """[kill] = seconds until all ranks go on, and until the next step."""
    command = [bench.program("lockstep"), "run", "--nproc-per-node", str(RANKS), "--on-loss", "replace", "--max-restarts", "100000",
               *options, bench.program("06_elastic"), "10000", "1"]
    results = []
    with Run(command, flags.timeout + 5 * kills) as run:
        pids = {}
        while len(pids) < RANKS:
            match = run.find(r"rank (\d+) is process (\d+) and continues")
            pids[int(match[1])] = int(match[2])
        for number in range(kills):
            bench.progress(f"kill {number + 1} of {kills}, {' '.join(options) or 'no spare'}")
            run.find(r"step \d+: ")
            time.sleep(chance.uniform(0.2, 0.6))  # while the steps go on; a spare gets ready
            victim = chance.randrange(RANKS)
            begun = time.perf_counter()
            os.kill(pids[victim], signal.SIGKILL)
            continuing = set()
            while len(continuing) < RANKS:
                match = run.find(r"rank (\d+) is process (\d+) and continues")
                pids[int(match[1])] = int(match[2])
                continuing.add(int(match[1]))
            all_continue = time.perf_counter() - begun
            run.find(r"step \d+: ")
            results.append((all_continue, time.perf_counter() - begun))
    return results


def shrink_seconds(flags, runs, chance):
    """[run] = seconds until the three others go on, and until the next step."""
    command = [bench.program("lockstep"), "run", "--nproc-per-node", str(RANKS), "--on-loss", "shrink", bench.program("06_elastic"),
               "10000", "1"]
    results = []
    for number in range(runs):
        bench.progress(f"kill {number + 1} of {runs}, shrink")
        with Run(command, flags.timeout) as run:
            pids = [int(run.find(r"rank \d+ is process (\d+) and continues")[1]) for _ in range(RANKS)]
            run.find(r"step \d+: ")
            time.sleep(chance.uniform(0.2, 0.6))
            begun = time.perf_counter()
            os.kill(chance.choice(pids), signal.SIGKILL)
            for _ in range(RANKS - 1):
                run.find(r"rank \d+ is process \d+ and continues")
            all_continue = time.perf_counter() - begun
            run.find(r"step \d+: ")
            results.append((all_continue, time.perf_counter() - begun))
    return results


def torchrun_seconds(flags, chance):
    command = [bench.PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS), "--max-restarts", "3",
               bench.twin("mnist")[1], "--data-dir", str(flags.data_dir), "--epochs", "100", "--log-interval", "1"]
    with Run(command, flags.timeout) as run:
        run.find(r"step 5/")
        ranks = [pid for pid, variables in marked_ranks(run.marker)]
        begun = time.perf_counter()
        os.kill(chance.choice(ranks), signal.SIGKILL)
        run.find(r"step 1/")
        return time.perf_counter() - begun


def marked_ranks(marker):
    from run_restart import marked
    return [(pid, variables) for pid, variables in marked(marker) if b"RANK" in variables]


def main():
    flags = parse_flags()
    chance = random.Random(0)
    rows = []
    results = {}
    goals = []
    measures = {"replacement": lambda kills: elastic_seconds(flags, [], kills, chance),
                "spare": lambda kills: elastic_seconds(flags, ["--spares", "1"], kills, chance),
                "shrink": lambda kills: shrink_seconds(flags, kills, chance)}
    for name, measure in measures.items():
        try:
            seconds = measure(flags.rounds + 1)[1:]  # the first one fills the page cache
        except RunFailed as failure:
            sys.exit(str(failure))
        all_continue, next_step = (list(column) for column in zip(*seconds))
        rows.append([f"lockstep run, {name}", all_continue, next_step, len(seconds), len(seconds)])
        results[name] = {"all_continue": all_continue, "next_step": next_step}
        median = sorted(all_continue)[len(all_continue) // 2]
        goals.append(f"{name}: goal of {GOALS[name]} s {'met' if median <= GOALS[name] else 'missed'}")
    peer = []
    for number in range(flags.peer_rounds):
        bench.progress(f"kill {number + 1} of {flags.peer_rounds}, torchrun")
        try:
            peer.append(torchrun_seconds(flags, chance))
        except RunFailed:
            pass
    if flags.peer_rounds:
        rows.append(["torchrun, restart of all", None, peer or None, flags.peer_rounds, len(peer)])
    results["torchrun"] = peer
    table = bench.table("kill -9 of a random rank of four (MNIST)", ["launcher", "all continue, s", "next step, s", "kills", "recovered"], rows)
    bench.report(flags, {"seconds": results}, {"elastic": [table]}, goals)


if __name__ == "__main__":
    main()
