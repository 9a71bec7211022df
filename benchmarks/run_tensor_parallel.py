#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Tensor parallel on two ranks over shm and Gloo beside PyTorch's over Gloo, in alternating slices: the forward of a column and row
pair with an output of 64 KB beside its parts, and steps of a GPT with whole activations and with parts of the sequence."""
import json
import statistics

import bench_support as bench

PLANS = {"whole activations": [], "sequence parallel": ["--sequence"]}


def measure(flags, options):
    arguments = [*options, "--steps", str(flags.steps)]
    ours = [bench.program("tensor_parallel_step"), *arguments]
    sides = {backend: lambda command=[*ours, "--backend", backend]: bench.launch("lockstep run", command, 2, flags.timeout)[-1]
             for backend in ("shm", "gloo")}
    sides["PyTorch"] = lambda: bench.launch("torchrun", [*bench.twin("tensor_parallel_step"), *arguments], 2, flags.timeout)[-1]
    rounds = bench.interleave(sides, flags.rounds)
    return {side: {key: statistics.median(each[key] for each in results) for key in results[0]} for side, results in rounds.items()}


def main():
    parser = bench.parser(__doc__, rounds=3)
    parser.add_argument("--steps", type=int, default=20)
    flags = parser.parse_args()
    results = {plan: measure(flags, options) for plan, options in PLANS.items()}
    if flags.json:
        print(json.dumps(results))
        return
    sides = results["whole activations"]
    print(f"{'pair, 64 KB':20}{'forward':>12}{'products':>12}{'all-reduce':>12}{'forward / parts':>17}")
    for side, each in sides.items():
        parts = f"{each['products'] * 1e6:>9.0f} us{each['all_reduce'] * 1e6:>9.0f} us" if "products" in each else ""
        ratio = f"{each['pair'] / (each['products'] + each['all_reduce']):>17.2f}" if parts else ""
        print(f"{side:20}{each['pair'] * 1e6:>9.0f} us{parts}{ratio}")
    print(f"\n{'gpt, a step':20}{'shm':>12}{'gloo':>12}{'PyTorch':>12}{'PyTorch / shm':>15}")
    for plan, sides in results.items():
        print(f"{plan:20}" + "".join(f"{sides[side]['gpt'] * 1e3:>9.1f} ms" for side in ("shm", "gloo", "PyTorch")) +
              f"{sides['PyTorch']['gpt'] / sides['shm']['gpt']:>15.2f}")
    print("\nGoals: forward / parts at most 1.3 over shm; a step at least 1.5 times as fast as PyTorch's.")


if __name__ == "__main__":
    main()
