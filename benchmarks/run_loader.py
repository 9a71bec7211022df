#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Passes over Lockstep's and PyTorch's data loaders without training, in alternating slices: samples per second with 0, 1
and 2 workers (threads in Lockstep, processes in PyTorch) on the same two cores, with one intra-op thread. images: bytes of
MNIST's size, gathered and normalized per batch. augmented: small colour images, cropped, flipped and with noise."""
import json
import statistics

import bench_support as bench

DATASETS = ("images", "augmented")
WORKERS = (0, 1, 2)


def rate(command, dataset, workers, flags):
    arguments = ["--dataset", dataset, "--workers", str(workers), "--samples", str(flags.samples)]
    result = bench.run_pinned([*command, *arguments], 1, flags.timeout, pinned_cores=2)[-1]
    return statistics.median(result["samples_per_second"][1:])  # the first pass warms up


def main():
    parser = bench.parser(__doc__, rounds=3, timeout=300)
    parser.add_argument("--samples", type=int, default=0, help="per pass; 0: 60000 images, 5000 augmented ones")
    flags = parser.parse_args()
    programs = {"PyTorch": bench.twin("loader"), "Lockstep": bench.benchmark("loader")}
    settings = [(dataset, workers) for dataset in DATASETS for workers in WORKERS]
    runs = bench.interleave(
        {(setting, side): lambda setting=setting, side=side: rate(programs[side], *setting, flags)
         for setting in settings for side in programs}, flags.rounds)
    rates = {f"{dataset} {workers}": {side: runs[(dataset, workers), side] for side in programs}
             for dataset, workers in settings}
    medians = {setting: {side: statistics.median(values) for side, values in sides.items()}
               for setting, sides in rates.items()}
    if flags.json:
        print(json.dumps({"rates": rates, "medians": medians}))
        return
    print(f"{'samples per second':24}{'PyTorch':>12}{'Lockstep':>12}{'Lockstep/PyTorch':>20}")
    for setting, sides in medians.items():
        dataset, workers = setting.split()
        print(f"{dataset:12}{workers} workers   {sides['PyTorch']:12.0f}{sides['Lockstep']:12.0f}"
              f"{sides['Lockstep'] / sides['PyTorch']:20.2f}")
    for workers in WORKERS[1:]:
        print(f"Lockstep's images with {workers} workers / without: "
              f"{medians[f'images {workers}']['Lockstep'] / medians['images 0']['Lockstep']:.2f} (goal: at least 1)")


if __name__ == "__main__":
    main()
