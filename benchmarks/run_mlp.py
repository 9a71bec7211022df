#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Trains a wide net with a small batch at two ranks with PyTorch's DDP over Gloo and with Lockstep over its own choice of
backend and over Gloo, in turns, and compares the time of a step and how much of it the reduction adds."""
import argparse
import json
import statistics

import bench_support as bench

SIDES = {"PyTorch": ("torchrun", None), "Lockstep gloo": ("lockstep run", "gloo"), "Lockstep": ("lockstep run", "auto")}


def run(side, timeout):
    launcher, backend = SIDES[side]
    if backend is None:
        command = [bench.PYTHON, str(bench.ROOT / "benchmarks/pytorch/mlp.py")]
    else:
        command = [bench.program("mlp"), "--backend", backend]
    output = bench.launch(launcher, command, 2, timeout)
    line = next(line for line in output.splitlines() if line.endswith("}"))
    return json.loads(line[line.index("{"):])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--timeout", type=int, default=600, help="seconds that one run may take")
    parser.add_argument("--json", action="store_true")
    flags = parser.parse_args()
    results = {side: [] for side in SIDES}
    for _ in range(flags.rounds):
        for side in SIDES:
            results[side].append(run(side, flags.timeout))
    if flags.json:
        print(json.dumps(results))
        return
    steps = {}
    print(f"{'':15}{'step':>10}{'no reduction':>15}{'added by it':>14}{'share':>8}   loss")
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
