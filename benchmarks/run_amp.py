#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Trains MNIST in float32 and in mixed precision, with and without channels_last, with Lockstep (examples/02_mnist)
and with PyTorch (pytorch/mnist.py) in turn, on one core each: milliseconds a step, and the accuracy after all epochs,
so that what is faster is seen to learn as well."""
import argparse
import json
import pathlib
import statistics

import bench_support as bench

SETTINGS = {"float32": [], "channels_last": ["--channels-last"], "bf16": ["--amp", "bf16"],
            "bf16, channels_last": ["--amp", "bf16", "--channels-last"]}
LAUNCHERS = {"PyTorch": "torchrun", "Lockstep": "lockstep run"}


def parse_flags():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1, help="runs of each setting; the median of all epochs counts")
    parser.add_argument("--epochs", type=int, default=5, help="of each run; the demo's are 5")
    parser.add_argument("--steps", type=int, default=0, help="stop an epoch after so many steps; 0: whole epochs")
    parser.add_argument("--fp16", action="store_true", help="float16 with a GradScaler, too: slow on most CPUs")
    parser.add_argument("--data-dir", type=pathlib.Path, default=bench.ROOT / ".data" / "mnist")
    parser.add_argument("--timeout", type=int, default=1800, help="seconds that one run may take")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    return parser.parse_args()


def command_of(side, setting, flags):
    command = ([bench.program("02_mnist")] if side == "Lockstep" else
               [bench.PYTHON, str(bench.ROOT / "benchmarks/pytorch/mnist.py")])
    return [*command, "--json", "--no-ddp", "--data-dir", str(flags.data_dir), "--epochs", str(flags.epochs),
            "--max-steps", str(flags.steps), "--batch-size", "128", *setting]


def run(side, name, setting, flags):
    output = bench.launch(LAUNCHERS[side], command_of(side, setting, flags), 1, flags.timeout)
    lines = [json.loads(line[line.index("{"):]) for line in output.splitlines() if line.endswith("}") and "{" in line]
    epochs = [line for line in lines if "epoch" in line]
    result = {"ms": [128_000 / epoch["samples_per_second"] for epoch in epochs],
              "loss": epochs[-1]["loss"], "accuracy": epochs[-1]["accuracy"]}
    if not flags.json:
        print(f"  {name:22}{side:10}{statistics.median(result['ms']):8.2f} ms a step, "
              f"accuracy {100 * result['accuracy']:.2f}%, loss {result['loss']!r}", flush=True)
    return result


def print_table(found):
    print(f"\n{'median ms a step':22}" + "".join(f"{side:>12}" for side in LAUNCHERS) + f"{'ratio':>10}{'accuracy':>12}")
    for name in found["Lockstep"]:
        ms = {side: statistics.median(ms for one in found[side][name] for ms in one["ms"]) for side in LAUNCHERS}
        print(f"{name:22}" + "".join(f"{ms[side]:12.2f}" for side in LAUNCHERS) +
              f"{ms['Lockstep'] / ms['PyTorch']:10.3f}{100 * found['Lockstep'][name][-1]['accuracy']:11.2f}%")
    same = all(ours["loss"] == theirs["loss"] and ours["accuracy"] == theirs["accuracy"] for name in found["Lockstep"]
               for ours, theirs in zip(found["Lockstep"][name], found["PyTorch"][name]))
    print(f"losses and accuracies of both sides equal to the last bit: {'yes' if same else 'NO'}")


def main():
    flags = parse_flags()
    if not flags.data_dir.exists():
        bench.finished([bench.program("02_mnist"), "--epochs", "1", "--max-steps", "1", "--download", "--data-dir",
                        str(flags.data_dir)], flags.timeout)
    settings = SETTINGS | ({"fp16": ["--amp", "fp16"]} if flags.fp16 else {})
    found = {side: {name: [] for name in settings} for side in LAUNCHERS}
    for _ in range(flags.rounds):
        for name, setting in settings.items():
            for side in LAUNCHERS:
                found[side][name].append(run(side, name, setting, flags))
    if flags.json:
        print(json.dumps(found))
    else:
        print_table(found)


if __name__ == "__main__":
    main()
