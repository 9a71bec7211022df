#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Steps of the optimizers alone on one core: LibTorch's own and the fused ones in C++, and Python's three kinds, in
alternating slices."""
import json
import statistics

import bench_support as bench

NETS = {"gpt": "100 tensors, 8.5 M", "mlp": "8 tensors, 4.2 M", "small": "400 tensors of 64"}
KINDS = ["adamw", "adam", "sgd"]
COLUMNS = {"C++ fused": ("C++", " fused"), "C++": ("C++", ""), "Python fused": ("Python", " fused"),
           "Python foreach": ("Python", " foreach"), "Python loop": ("Python", "")}


def medians(net, flags):
    arguments = ["--net", net, "--steps", str(flags.steps)]
    programs = {"C++": bench.benchmark("optim_step"), "Python": bench.twin("optim_step")}
    bench.progress(f"net {net}")
    runs = bench.interleave({name: lambda command=command: bench.run_pinned([*command, *arguments], 1, flags.timeout)[-1]
                             for name, command in programs.items()}, flags.rounds)
    return {language: {name: statistics.median(result[name] for result in results) for name in results[0]}
            for language, results in runs.items()}


def print_table(found):
    print(f"{'ms per step':34}" + "".join(f"{name:>16}" for name in COLUMNS) + f"{'C++ / Python fused':>20}")
    for net, times in found.items():
        for kind in KINDS:
            row = [times[language][kind + variant] for language, variant in COLUMNS.values()]
            print(f"{f'{kind}, {net} ({NETS[net]})':34}" + "".join(f"{1e3 * value:16.3f}" for value in row) +
                  f"{row[0] / row[2]:20.3f}")
    ratios = [times["C++"][kind] / times["C++"][kind + " fused"] for times in found.values() for kind in KINDS]
    print(f"\nThe fused optimizers are {min(ratios):.2f} to {max(ratios):.2f} times as fast as LibTorch's own.")


def main():
    parser = bench.parser(__doc__, rounds=3)
    parser.add_argument("--nets", nargs="+", choices=NETS, default=list(NETS))
    parser.add_argument("--steps", type=int, default=10, help="steps between two readings of the clock")
    flags = parser.parse_args()
    found = {net: medians(net, flags) for net in flags.nets}
    print(json.dumps(found)) if flags.json else print_table(found)


if __name__ == "__main__":
    main()
