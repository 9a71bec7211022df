#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Times the steps of optimizers alone on one core: LibTorch's own and the fused ones in C++, and Python's three ways, in
turns."""
import argparse
import json
import os
import statistics

import bench_support as bench

NETS = {"gpt": "100 tensors, 8.5 M", "mlp": "8 tensors, 4.2 M", "small": "400 tensors of 64"}
COLUMNS = {"C++ fused": ("C++", " fused"), "C++": ("C++", ""), "Python fused": ("Python", " fused"),
           "Python foreach": ("Python", " foreach"), "Python loop": ("Python", "")}


def parse_flags():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nets", nargs="+", choices=NETS, default=list(NETS))
    parser.add_argument("--rounds", type=int, default=3, help="runs of each program")
    parser.add_argument("--steps", type=int, default=10, help="between two looks at the clock")
    parser.add_argument("--timeout", type=int, default=600, help="seconds that one run may take")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    return parser.parse_args()


def run(language, net, flags):
    program = ([bench.program("optim_step")] if language == "C++" else
               [bench.PYTHON, str(bench.ROOT / "benchmarks/pytorch/optim_step.py")])
    command = ["taskset", "-c", str(bench.cores(1)[0]), *program, "--net", net, "--steps", str(flags.steps)]
    output = bench.finished(command, flags.timeout, os.environ | {"OMP_NUM_THREADS": "1"}, stderr=None)
    return json.loads(output.strip().splitlines()[-1])


def medians(net, flags):
    runs = {"C++": [], "Python": []}
    for _ in range(flags.rounds):
        for language, results in runs.items():
            results.append(run(language, net, flags))
    return {language: {name: statistics.median(result[name] for result in results) for name in results[0]}
            for language, results in runs.items()}


def print_table(found):
    print(f"{'ms a step':34}" + "".join(f"{name:>16}" for name in COLUMNS) + f"{'C++ / Python fused':>20}")
    for net, times in found.items():
        for kind in ["adamw", "adam", "sgd"]:
            row = [times[language][kind + way] for language, way in COLUMNS.values()]
            print(f"{f'{kind}, {net} ({NETS[net]})':34}" + "".join(f"{1e3 * value:16.3f}" for value in row) +
                  f"{row[0] / row[2]:20.3f}")
    ratios = [times["C++"][kind] / times["C++"][kind + " fused"] for times in found.values()
              for kind in ["adamw", "adam", "sgd"]]
    print(f"\nThe fused optimizers are {min(ratios):.2f} to {max(ratios):.2f} times as fast as LibTorch's own.")


def main():
    flags = parse_flags()
    found = {net: medians(net, flags) for net in flags.nets}
    if flags.json:
        print(json.dumps(found))
    else:
        print_table(found)


if __name__ == "__main__":
    main()
