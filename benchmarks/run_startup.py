#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""From nothing to a finished all-reduce on two ranks: `lockstep run` with examples/01_hello_allreduce, and torchrun
with its Python twin, in turn."""
import argparse
import json
import statistics

import bench_support as bench


def parse_flags():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="runs of each side; their median counts")
    parser.add_argument("--timeout", type=int, default=120, help="seconds that one run may take")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    return parser.parse_args()


def main():
    flags = parse_flags()
    commands = {
        "torchrun": [bench.PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
                     str(bench.ROOT / "benchmarks/pytorch/hello_allreduce.py")],
        "lockstep run": [bench.program("lockstep"), "run", "--nproc-per-node", "2",
                         bench.program("01_hello_allreduce")],
    }
    seconds = {name: [] for name in commands}
    for number in range(-1, flags.rounds):
        for name, command in commands.items():
            taken = bench.wall_seconds(command, flags.timeout)
            if number >= 0:  # the first run of each fills the page cache
                seconds[name].append(taken)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    ratio = medians["lockstep run"] / medians["torchrun"]
    if flags.json:
        print(json.dumps({"seconds": seconds, "median_seconds": medians, "ratio": ratio}))
        return
    for name, median in medians.items():
        print(f"{name:14}{median:7.3f} s  (of {flags.rounds}: {min(seconds[name]):.3f} to {max(seconds[name]):.3f})")
    print(f"lockstep run/torchrun: {bench.goal(ratio, 0.2)}")


if __name__ == "__main__":
    main()
