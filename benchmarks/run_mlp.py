#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Trains a wide net with a small batch on two ranks with PyTorch's DDP over Gloo, and with Lockstep over its default backend
and over Gloo, in alternating slices: the time of a step, and the share of the reduction."""
import statistics

import bench_support as bench

BACKENDS = {"Lockstep gloo": "gloo", "Lockstep": "auto"}


def main():
    flags = bench.recording_parser(__doc__, rounds=3).parse_args()
    sides = {"PyTorch": lambda: bench.launch("torchrun", bench.twin("mlp"), 2, flags.timeout)[-1]}
    for side, backend in BACKENDS.items():
        command = [*bench.benchmark("mlp"), "--backend", backend]
        sides[side] = lambda command=command: bench.launch("lockstep run", command, 2, flags.timeout)[-1]
    results = bench.interleave(sides, flags.rounds)
    steps = {side: bench.of_rounds(runs, "step_seconds", 1e3) for side, runs in results.items()}
    alone = {side: bench.of_rounds(runs, "step_seconds_without_reduction", 1e3) for side, runs in results.items()}
    rows = [[side, steps[side], alone[side], statistics.median(steps[side]) - statistics.median(alone[side]), repr(runs[0]["loss"])]
            for side, runs in results.items()]
    faster = bench.ratio(steps["PyTorch"], steps["Lockstep"])
    table = bench.table("Milliseconds per step", ["side", "step", "step without reduction", "exposed reduction", "loss"], rows)
    bench.report(flags, results, {"mlp": [table]}, [f"Lockstep's step is {faster:.2f} times as fast as PyTorch's (goal: at least 1.5, "
                                                    f"{'met' if faster >= 1.5 else 'missed'})"])


if __name__ == "__main__":
    main()
