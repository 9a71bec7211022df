#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Tensor parallel on two ranks over shm and Gloo beside PyTorch's over Gloo, in alternating slices: the forward of a column and row
pair with an output of 64 KB beside its parts, and steps of a GPT with whole activations and with parts of the sequence."""
import statistics

import bench_support as bench

PLANS = {"whole activations": [], "sequence parallel": ["--sequence"]}


def measure(flags, options):
    arguments = [*options, "--steps", str(flags.steps)]
    ours = [*bench.benchmark("tensor_parallel_step"), *arguments]
    sides = {backend: lambda command=[*ours, "--backend", backend]: bench.launch("lockstep run", command, 2, flags.timeout)[-1]
             for backend in ("shm", "gloo")}
    sides["PyTorch"] = lambda: bench.launch("torchrun", [*bench.twin("tensor_parallel_step"), *arguments], 2, flags.timeout)[-1]
    return bench.interleave(sides, flags.rounds)


def pair_row(side, rounds):
    parts = [bench.of_rounds(rounds, key, 1e6) for key in ("products", "all_reduce")] if "products" in rounds[0] else [None, None]
    pair = bench.of_rounds(rounds, "pair", 1e6)
    ratio = statistics.median(pair) / sum(map(statistics.median, parts)) if all(parts) else None
    return [side, pair, *parts, ratio]


def step_row(plan, sides):
    steps = [bench.of_rounds(sides[side], "gpt", 1e3) for side in ("shm", "gloo", "PyTorch")]
    return [plan, *steps, bench.ratio(steps[2], steps[0])]


def main():
    parser = bench.recording_parser(__doc__, rounds=3)
    parser.add_argument("--steps", type=int, default=20)
    flags = parser.parse_args()
    results = {plan: measure(flags, options) for plan, options in PLANS.items()}
    pairs = bench.table("Forward of a column and a row layer, 1024 to 4096 to 1024, 16 rows",
                        ["backend", "forward, us", "products, us", "all-reduce, us", "forward / parts"],
                        [pair_row(side, rounds) for side, rounds in results["whole activations"].items()])
    steps = bench.table("Steps of a GPT, milliseconds",
                        ["activations between the layers", "Lockstep, shm", "Lockstep, Gloo", "PyTorch, Gloo", "PyTorch / shm"],
                        [step_row(plan, sides) for plan, sides in results.items()])
    bench.report(flags, results, {"tensor_parallel": [pairs, steps]},
                 ["Goals: forward / parts at most 1.3 over shm; a step at least 1.5 times as fast as PyTorch's."])


if __name__ == "__main__":
    main()
