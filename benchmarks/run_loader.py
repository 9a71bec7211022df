#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Passes over data loaders, Lockstep's and PyTorch's in turn, without training on what they give, and compares samples a
second with 0, 1 and 2 workers: threads here, processes there. Both sides share the same two cores, and compute with one
thread each. images: bytes of MNIST's size, a whole batch gathered and normalized at once. augmented: small colour images,
each cropped, flipped and given noise."""
import argparse
import json
import os
import statistics

import bench_support as bench

DATASETS = ("images", "augmented")
WORKERS = (0, 1, 2)


def run(side, dataset, workers, flags):
    python = [bench.PYTHON, str(bench.ROOT / "benchmarks/pytorch/loader.py")]
    command = python if side == "PyTorch" else [bench.program("loader")]
    pinned = ["taskset", "-c", ",".join(map(str, bench.cores(2)))]
    output = bench.finished([*pinned, *command, "--dataset", dataset, "--workers", str(workers), "--samples",
                             str(flags.samples)], flags.timeout, os.environ | {"OMP_NUM_THREADS": "1"})
    # The first pass warms up.
    return statistics.median(json.loads(output.splitlines()[-1])["samples_per_second"][1:])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each setting; their median counts")
    parser.add_argument("--samples", type=int, default=0, help="in a pass; 0: 60000 images, 5000 augmented ones")
    parser.add_argument("--timeout", type=int, default=300, help="seconds that one run may take")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    flags = parser.parse_args()
    rates = {f"{dataset} {workers}": {"PyTorch": [], "Lockstep": []} for dataset in DATASETS for workers in WORKERS}
    for _ in range(flags.rounds):
        for dataset in DATASETS:
            for workers in WORKERS:
                for side, values in rates[f"{dataset} {workers}"].items():
                    values.append(run(side, dataset, workers, flags))
    medians = {setting: {side: statistics.median(values) for side, values in sides.items()}
               for setting, sides in rates.items()}
    if flags.json:
        print(json.dumps({"rates": rates, "medians": medians}))
        return
    print(f"{'samples a second':24}{'PyTorch':>12}{'Lockstep':>12}{'Lockstep/PyTorch':>20}")
    for setting, sides in medians.items():
        dataset, workers = setting.split()
        print(f"{dataset:12}{workers} workers   {sides['PyTorch']:12.0f}{sides['Lockstep']:12.0f}"
              f"{sides['Lockstep'] / sides['PyTorch']:20.2f}")
    for workers in WORKERS[1:]:
        print(f"Lockstep's images with {workers} workers / without: "
              f"{medians[f'images {workers}']['Lockstep'] / medians['images 0']['Lockstep']:.2f} (goal: at least 1)")


if __name__ == "__main__":
    main()
