#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Trains MNIST in float32 and in mixed precision, with and without channels_last, with Lockstep (mnist.cpp) and PyTorch
(pytorch/mnist.py, also with torch.compile), with one core per rank: milliseconds per step, the speed beside PyTorch's in
float32, and the accuracy after the last epoch. Each round has a seed of its own. `--steps 0 --epochs 3 --rounds 5` trains whole
epochs with five seeds."""
import json
import statistics

import bench_support as bench
import mnist_runs

SETTINGS = {"float32": [], "channels_last": ["--channels-last"], "bf16": ["--amp", "bf16"],
            "bf16, channels_last": ["--amp", "bf16", "--channels-last"]}
# Lockstep's init() enables the caching CPU allocator, which PyTorch does not have.
SIDES = {"PyTorch": (None, []), "torch.compile": (None, ["--compile"]), "Lockstep": ("auto", [])}


def slice_of(flags, side, arguments, seed):
    backend, own = SIDES[side]
    alone = ["--no-ddp"] if flags.ranks == 1 else []
    options = [*alone, *own, *arguments, "--seed", str(seed)]
    epochs = mnist_runs.train(flags, backend, flags.ranks, flags.epochs, options)
    return {"ms": [1000 * flags.ranks * flags.batch_size / epoch["samples_per_second"] for epoch in epochs],
            "loss": epochs[-1]["loss"], "accuracy": epochs[-1]["accuracy"]}


def rounds_of(flags, side, arguments):
    """A function that runs one slice, with the next seed each time."""
    seeds = iter(range(flags.rounds))
    return lambda: slice_of(flags, side, arguments, next(seeds))


def print_table(found):
    names = list(found["Lockstep"])
    ms = {(name, side): statistics.median(ms for run in found[side][name] for ms in run["ms"][1:] or run["ms"])
          for name in names for side in SIDES}
    print(f"{'median ms per step':22}" + "".join(f"{side:>15}" for side in SIDES) + f"{'speed':>9}{'accuracy':>12}")
    for name in names:
        accuracy = statistics.mean(run["accuracy"] for run in found["Lockstep"][name])
        print(f"{name:22}" + "".join(f"{ms[name, side]:15.2f}" for side in SIDES) +
              f"{ms[names[0], 'PyTorch'] / ms[name, 'Lockstep']:9.2f}{100 * accuracy:11.2f}%")
    same = all(ours["loss"] == theirs["loss"] and ours["accuracy"] == theirs["accuracy"] for name in names
               for ours, theirs in zip(found["Lockstep"][name], found["PyTorch"][name]))
    print("speed: Lockstep's, with PyTorch in float32 as 1 (goal with bf16 and channels_last: at least 2)")
    print(f"losses and accuracies of Lockstep and PyTorch equal to the last bit: {'yes' if same else 'NO'}")


def main():
    parser = bench.parser(__doc__, rounds=5, timeout=1800)
    mnist_runs.add_options(parser, steps=40)
    parser.add_argument("--epochs", type=int, default=2, help="epochs per slice, the first of which is not timed")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--fp16", action="store_true", help="also float16 with a GradScaler: slow on most CPUs")
    flags = parser.parse_args()
    mnist_runs.download(flags)
    settings = SETTINGS | ({"fp16": ["--amp", "fp16"]} if flags.fp16 else {})
    runs = bench.interleave({f"{name}, {side}": rounds_of(flags, side, settings[name])
                             for name in settings for side in SIDES}, flags.rounds)
    found = {side: {name: runs[f"{name}, {side}"] for name in settings} for side in SIDES}
    print(json.dumps(found)) if flags.json else print_table(found)


if __name__ == "__main__":
    main()
