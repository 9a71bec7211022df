#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Trains a wide net with a small batch on two ranks with PyTorch's DDP over Gloo, and with Lockstep over its default backend
and over Gloo, in alternating slices: the time of a step, and the share of the reduction."""
import json
import statistics

import bench_support as bench

BACKENDS = {"Lockstep gloo": "gloo", "Lockstep": "auto"}


def main():
    flags = bench.parser(__doc__, rounds=3).parse_args()
    sides = {"PyTorch": lambda: bench.launch("torchrun", bench.twin("mlp"), 2, flags.timeout)[-1]}
    for side, backend in BACKENDS.items():
        command = [bench.program("mlp"), "--backend", backend]
        sides[side] = lambda command=command: bench.launch("lockstep run", command, 2, flags.timeout)[-1]
    results = bench.interleave(sides, flags.rounds)
    if flags.json:
        print(json.dumps(results))
        return
    steps = {}
    print(f"{'':15}{'step':>10}{'no reduction':>15}{'reduction':>14}{'share':>8}   loss")
    for side, runs in results.items():
        steps[side] = statistics.median(run["step_seconds"] for run in runs)
        alone = statistics.median(run["step_seconds_without_reduction"] for run in runs)
        print(f"{side:15}{steps[side] * 1e3:8.1f} ms{alone * 1e3:12.1f} ms{(steps[side] - alone) * 1e3:11.1f} ms"
              f"{(steps[side] - alone) / steps[side]:8.1%}   {runs[0]['loss']!r}")
    faster = steps["PyTorch"] / steps["Lockstep"]
    print(f"\nLockstep's step is {faster:.2f} times as fast as PyTorch's (goal: at least 1.5, "
          f"{'met' if faster >= 1.5 else 'missed'})")


if __name__ == "__main__":
    main()
