#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Trains MNIST in float32 and in mixed precision, with and without channels_last, with Lockstep (mnist.cpp) and PyTorch
(pytorch/mnist.py, also with torch.compile), with one core per rank: milliseconds per step, the speed beside PyTorch's in
float32, and the accuracy after the last epoch. Each round has a seed of its own. `--steps 0 --epochs 3 --rounds 5` trains whole
epochs with five seeds."""

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


def milliseconds(runs):
    return [ms for run in runs for ms in run["ms"][1:] or run["ms"]]


def tables_of(found):
    ms = {side: {name: milliseconds(runs) for name, runs in settings.items()} for side, settings in found.items()}
    rows = [[name, *(ms[side][name] for side in SIDES), bench.ratio(ms["PyTorch"]["float32"], ms["Lockstep"][name])] for name in ms["Lockstep"]]
    accuracies = [[name, *(round(100 * run["accuracy"], 2) for run in runs)] for name, runs in found["Lockstep"].items()]
    seeds = map(str, range(len(accuracies[0]) - 1))
    return {"amp": [bench.table("Milliseconds per step of one rank with one core", ["configuration", *SIDES, "PyTorch, float32 / Lockstep"], rows)],
            "amp_accuracy": [bench.table("Accuracy after the last epoch by seed, percent", ["configuration", *seeds], accuracies)]}


def is_equal(found):
    """Whether losses and accuracies of Lockstep are those of PyTorch, to the last bit."""
    return all(ours["loss"] == theirs["loss"] and ours["accuracy"] == theirs["accuracy"] for name in found["Lockstep"]
               for ours, theirs in zip(found["Lockstep"][name], found["PyTorch"][name]))


def main():
    parser = bench.recording_parser(__doc__, rounds=5, timeout=1800)
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
    bench.report(flags, found, tables_of(found), [
        "Goal with bf16 and channels_last: at least twice PyTorch's speed in float32.",
        f"Losses and accuracies of Lockstep and PyTorch equal to the last bit: {'yes' if is_equal(found) else 'NO'}"])


if __name__ == "__main__":
    main()
