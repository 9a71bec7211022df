#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Steps of pipelines of two ranks over shm and Gloo beside PyTorch's over Gloo, in alternating slices; the share of a step in which
a rank computes nothing, beside what simulate() says for the measured times of the actions."""
import json
import statistics

import bench_support as bench

# Schedule and stages on each rank.
SCHEDULES = [("GPipe", 1), ("1F1B", 1), ("Interleaved1F1B", 2), ("InterleavedZeroBubble", 1), ("ZBVZeroBubble", 2)]
RANKS = [2, 4, 8, 16, 32, 64]


def arguments(flags, net, schedule, stages):
    return ["--net", net, "--schedule", schedule, "--stages", str(stages), "--microbatches", str(flags.microbatches),
            "--steps", str(flags.steps)]


def measure(flags, net):
    sides = {}
    for schedule, stages in SCHEDULES:
        options = arguments(flags, net, schedule, stages)
        ours = [bench.program("pipeline_step"), *options]
        for backend in ("shm", "gloo"):
            sides[schedule, backend] = lambda command=[*ours, "--backend", backend]: bench.launch(
                "lockstep run", command, 2, flags.timeout)[-1]
        sides[schedule, "PyTorch"] = lambda command=[*bench.twin("pipeline_step"), *options]: bench.launch(
            "torchrun", command, 2, flags.timeout)[-1]
    bench.progress(f"net {net}")
    rounds = bench.interleave(sides, flags.rounds)
    return {side: {key: statistics.median(each[key] for each in results) for key in results[0] if key != "rank"}
            for side, results in rounds.items()}


def main():
    parser = bench.parser(__doc__, rounds=3)
    parser.add_argument("--nets", nargs="+", choices=["mlp", "gpt"], default=["mlp", "gpt"])
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--steps", type=int, default=15)
    flags = parser.parse_args()
    results = {net: measure(flags, net) for net in flags.nets}
    if flags.json:
        print(json.dumps({net: {" ".join(side): each for side, each in sides.items()} for net, sides in results.items()}))
        return
    for net, sides in results.items():
        print(f"{net}, 2 ranks, {flags.microbatches} micro-batches")
        print(f"{'schedule':24}{'shm':>10}{'gloo':>10}{'PyTorch':>10}{'PyTorch / shm':>15}{'idle':>8}{'simulated':>11}"
              f"{'simulated / measured step':>27}")
        for schedule, _ in SCHEDULES:
            shm, gloo, torch = (sides[schedule, side] for side in ("shm", "gloo", "PyTorch"))
            print(f"{schedule:24}{shm['seconds'] * 1e3:>7.1f} ms{gloo['seconds'] * 1e3:>7.1f} ms{torch['seconds'] * 1e3:>7.1f} ms"
                  f"{torch['seconds'] / shm['seconds']:>15.2f}{shm['idle'] * 100:>7.1f}%{shm['simulated_idle'] * 100:>10.1f}%"
                  f"{shm['simulated_seconds'] / shm['pipeline_seconds']:>27.2f}")
    print("\nIdle as simulated for more ranks with equal stages, the measured times and four micro-batches a rank")
    print(f"{'net':6}{'schedule':24}" + "".join(f"{ranks:>8}" for ranks in RANKS))
    for net, sides in results.items():
        for schedule, _ in SCHEDULES:
            print(f"{net:6}{schedule:24}" + "".join(f"{sides[schedule, 'shm'][f'idle_{ranks}'] * 100:>7.1f}%" for ranks in RANKS))
    print("\nGoals: idle within 3 points of the simulation, a simulated step within 10 % of the measured one; gpt at least 1.5 "
          "times as fast as PyTorch's.")


if __name__ == "__main__":
    main()
