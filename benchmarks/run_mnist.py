#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Trains MNIST with Lockstep (mnist.cpp) and PyTorch (pytorch/mnist.py) on the same data, in alternating slices of a few
seconds, and compares seconds per epoch. Each side runs under its own launcher (lockstep run, torchrun); each rank has one
core and one thread."""
import json
import statistics

import bench_support as bench
import mnist_runs

# Lockstep over Gloo produces the same bits as PyTorch; its default on one host is shared memory.
SIDES = {"PyTorch": None, "Lockstep gloo": "gloo", "Lockstep": "auto"}
SETTINGS = {"bare loop": (1, ["--no-ddp"]), "DDP, 1 rank": (1, []), "DDP, 2 ranks": (2, [])}
TRAINING_IMAGES = 60000


def slice_of(flags, side, setting):
    world_size, arguments = SETTINGS[setting]
    # In a short slice the first epoch warms up.
    epoch = mnist_runs.train(flags, SIDES[side], world_size, 2 if flags.steps else 1, arguments)[-1]
    epoch["seconds"] = TRAINING_IMAGES / epoch["samples_per_second"]
    return epoch


def print_tables(seconds, one_rank, same_losses):
    print("seconds per epoch (medians)")
    print(f"{'':18}" + "".join(f"{name:>14}" for name in SETTINGS))
    for side in SIDES:
        print(f"{side:18}" + "".join(f"{seconds[side][name]:14.2f}" for name in SETTINGS))
    for side in list(SIDES)[1:]:
        ratios = {name: seconds[side][name] / seconds["PyTorch"][name] for name in SETTINGS}
        print(f"{side + '/PyTorch':22}" + "".join(f"{ratios[name]:10.3f}" + " " * 4 for name in SETTINGS))
    print(f"\nLockstep/PyTorch at 2 ranks: {bench.goal(ratios['DDP, 2 ranks'], 0.87)}")
    print(f"Lockstep's DDP at 1 rank/bare loop, interleaved within one process: {bench.goal(one_rank['ratio'], 1.02)}")
    print(f"losses of both sides equal to the last bit: {'yes' if same_losses else 'NO'}")


def main():
    parser = bench.parser(__doc__, rounds=10)
    mnist_runs.add_options(parser, steps=40)
    flags = parser.parse_args()
    mnist_runs.download(flags)
    runs = bench.interleave({f"{setting}, {side}": lambda side=side, setting=setting: slice_of(flags, side, setting)
                             for setting in SETTINGS for side in SIDES}, flags.rounds)
    epochs = {side: {setting: runs[f"{setting}, {side}"] for setting in SETTINGS} for side in SIDES}
    bench.progress("overhead of DDP on one rank")
    one_rank = bench.launch("lockstep run", [bench.program("ddp_overhead")], 1, flags.timeout)[-1]
    seconds = {side: {name: statistics.median(run["seconds"] for run in each) for name, each in settings.items()}
               for side, settings in epochs.items()}
    same_losses = all(len({run["loss"] for side in SIDES for run in epochs[side][name]}) == 1 for name in SETTINGS)
    if flags.json:
        print(json.dumps({"epochs": epochs, "median_seconds": seconds, "ddp_overhead": one_rank,
                          "same_losses": same_losses}))
    else:
        print_tables(seconds, one_rank, same_losses)


if __name__ == "__main__":
    main()
