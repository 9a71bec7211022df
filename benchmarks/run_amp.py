#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Trains MNIST in float32 and in mixed precision, with and without channels_last, with Lockstep (mnist.cpp) and PyTorch
(pytorch/mnist.py), on one core each: milliseconds per step, and the accuracy after the last epoch. `--steps 0 --epochs 5
--rounds 1` trains whole epochs."""
import json
import statistics

import bench_support as bench
import mnist_runs

SETTINGS = {"float32": [], "channels_last": ["--channels-last"], "bf16": ["--amp", "bf16"],
            "bf16, channels_last": ["--amp", "bf16", "--channels-last"]}
SIDES = {"PyTorch": None, "Lockstep": "auto"}


def slice_of(flags, side, arguments):
    epochs = mnist_runs.train(flags, SIDES[side], 1, flags.epochs, ["--no-ddp", *arguments])
    return {"ms": [1000 * flags.batch_size / epoch["samples_per_second"] for epoch in epochs],
            "loss": epochs[-1]["loss"], "accuracy": epochs[-1]["accuracy"]}


def print_table(found):
    print(f"{'median ms per step':22}" + "".join(f"{side:>12}" for side in SIDES) + f"{'ratio':>10}{'accuracy':>12}")
    for name in found["Lockstep"]:
        ms = {side: statistics.median(ms for one in found[side][name] for ms in one["ms"]) for side in SIDES}
        print(f"{name:22}" + "".join(f"{ms[side]:12.2f}" for side in SIDES) +
              f"{ms['Lockstep'] / ms['PyTorch']:10.3f}{100 * found['Lockstep'][name][-1]['accuracy']:11.2f}%")
    same = all(ours["loss"] == theirs["loss"] and ours["accuracy"] == theirs["accuracy"] for name in found["Lockstep"]
               for ours, theirs in zip(found["Lockstep"][name], found["PyTorch"][name]))
    print(f"losses and accuracies of both sides equal to the last bit: {'yes' if same else 'NO'}")


def main():
    parser = bench.parser(__doc__, rounds=5, timeout=1800)
    mnist_runs.add_options(parser, steps=40)
    parser.add_argument("--epochs", type=int, default=2, help="epochs per slice")
    parser.add_argument("--fp16", action="store_true", help="also float16 with a GradScaler: slow on most CPUs")
    flags = parser.parse_args()
    mnist_runs.download(flags)
    settings = SETTINGS | ({"fp16": ["--amp", "fp16"]} if flags.fp16 else {})
    runs = bench.interleave({f"{name}, {side}": lambda side=side, name=name: slice_of(flags, side, settings[name])
                             for name in settings for side in SIDES}, flags.rounds)
    found = {side: {name: runs[f"{name}, {side}"] for name in settings} for side in SIDES}
    print(json.dumps(found)) if flags.json else print_table(found)


if __name__ == "__main__":
    main()
