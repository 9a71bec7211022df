#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Trains MNIST with Lockstep (mnist.cpp) and PyTorch (pytorch/mnist.py) on the same data, in alternating slices of a few
seconds, and compares seconds per epoch. Each side runs under its own launcher (lockstep run, torchrun); each rank has one
core and one thread."""
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


def tables_of(seconds, one_rank):
    names = {"PyTorch": "PyTorch", "Lockstep gloo": "Lockstep, Gloo", "Lockstep": "Lockstep, shm"}
    rows = [[name, *(seconds[side][setting] for setting in SETTINGS)] for side, name in names.items()]
    rows += [[f"{name} / PyTorch", *(bench.ratio(seconds[side][setting], seconds["PyTorch"][setting]) for setting in SETTINGS)]
             for side, name in names.items() if side != "PyTorch"]
    return {"mnist": [bench.table("Seconds per epoch", ["side", *SETTINGS], rows)],
            "ddp_overhead": [bench.table("One process that alternates the bare loop and DDP with one rank", ["DDP / bare loop"],
                                         [[[one_rank["ratio"]]]])]}


def main():
    parser = bench.recording_parser(__doc__, rounds=10)
    mnist_runs.add_options(parser, steps=40)
    flags = parser.parse_args()
    mnist_runs.download(flags)
    runs = bench.interleave({f"{setting}, {side}": lambda side=side, setting=setting: slice_of(flags, side, setting)
                             for setting in SETTINGS for side in SIDES}, flags.rounds)
    epochs = {side: {setting: runs[f"{setting}, {side}"] for setting in SETTINGS} for side in SIDES}
    bench.progress("overhead of DDP on one rank")
    one_rank = bench.launch("lockstep run", bench.benchmark("ddp_overhead"), 1, flags.timeout)[-1]
    seconds = {side: {name: bench.of_rounds(each, "seconds") for name, each in settings.items()} for side, settings in epochs.items()}
    medians = {side: {name: statistics.median(each) for name, each in settings.items()} for side, settings in seconds.items()}
    same_losses = all(len({run["loss"] for side in SIDES for run in epochs[side][name]}) == 1 for name in SETTINGS)
    ratio = bench.ratio(seconds["Lockstep"]["DDP, 2 ranks"], seconds["PyTorch"]["DDP, 2 ranks"])
    bench.report(flags, {"epochs": epochs, "median_seconds": medians, "ddp_overhead": one_rank, "same_losses": same_losses},
                 tables_of(seconds, one_rank),
                 [f"Lockstep/PyTorch at 2 ranks: {bench.goal(ratio, 0.87)}",
                  f"Lockstep's DDP at 1 rank/bare loop, interleaved within one process: {bench.goal(one_rank['ratio'], 1.02)}",
                  f"losses of both sides equal to the last bit: {'yes' if same_losses else 'NO'}"])


if __name__ == "__main__":
    main()
