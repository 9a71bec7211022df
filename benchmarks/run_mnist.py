#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Trains MNIST with Lockstep (examples/02_mnist) and with PyTorch (pytorch/mnist.py) in turn, on the same data, and
compares seconds an epoch. Each side runs under its own launcher (lockstep run, torchrun), as its users run it; each
rank has a core of its own and one thread."""
import argparse
import json
import pathlib
import statistics

import bench_support as bench

# Side: how its ranks are started, and the backend. Python has no better one for the CPU than Gloo; Lockstep picks shared
# memory by itself, and over Gloo it has to give the same bits as Python.
SIDES = {"PyTorch": ("torchrun", "gloo"), "Lockstep gloo": ("lockstep run", "gloo"), "Lockstep": ("lockstep run", "auto")}
SETTINGS = (("bare loop", 1, ["--no-ddp"]), ("DDP, 1 rank", 1, []), ("DDP, 2 ranks", 2, []))
TRAINING_IMAGES = 60000


def parse_flags():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each setting; their median counts")
    parser.add_argument("--steps", type=int, default=0, help="stop an epoch after so many steps; 0: whole epochs")
    parser.add_argument("--batch-size", type=int, default=128, help="images a step, on each rank")
    parser.add_argument("--data-dir", type=pathlib.Path, default=bench.ROOT / ".data" / "mnist")
    parser.add_argument("--timeout", type=int, default=900, help="seconds that one run may take")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    return parser.parse_args()


def command_of(side, flags):
    python = [bench.PYTHON, str(bench.ROOT / "benchmarks/pytorch/mnist.py")]
    command = python if side == "PyTorch" else [bench.program("02_mnist"), "--backend", SIDES[side][1]]
    # In a short run the first epoch warms up.
    return [*command, "--json", "--data-dir", str(flags.data_dir), "--epochs", "2" if flags.steps else "1",
            "--max-steps", str(flags.steps), "--batch-size", str(flags.batch_size)]


def results(output):
    """The JSON objects among the lines, which a launcher may have marked with the rank."""
    return [json.loads(line[line.index("{"):]) for line in output.splitlines() if line.endswith("}") and "{" in line]


def run(side, setting, flags):
    name, world_size, extra = setting
    output = bench.launch(SIDES[side][0], [*command_of(side, flags), *extra], world_size, flags.timeout)
    epoch = [result for result in results(output) if "epoch" in result][-1]
    # Whole epochs, also where only a part of one was run.
    epoch["seconds"] = TRAINING_IMAGES / epoch["samples_per_second"]
    if not flags.json:
        print(f"  {name:14}{side:15}{epoch['seconds']:8.2f} s  loss {epoch['loss']!r}", flush=True)
    return epoch


def measure(flags):
    epochs = {side: {name: [] for name, _, _ in SETTINGS} for side in SIDES}
    for number in range(flags.rounds):
        if not flags.json:
            print(f"round {number + 1} of {flags.rounds}", flush=True)
        for setting in SETTINGS:
            for side in SIDES:
                epochs[side][setting[0]].append(run(side, setting, flags))
    return epochs


def overhead(flags):
    return results(bench.launch("lockstep run", [bench.program("ddp_overhead")], 1, flags.timeout))[-1]


def have_same_losses(epochs):
    return all(len({run["loss"] for side in SIDES for run in epochs[side][name]}) == 1 for name, _, _ in SETTINGS)


def print_tables(seconds, one_rank, same_losses):
    print("\nseconds an epoch (medians)")
    print(f"{'':18}" + "".join(f"{name:>14}" for name, _, _ in SETTINGS))
    for side in SIDES:
        print(f"{side:18}" + "".join(f"{seconds[side][name]:14.2f}" for name, _, _ in SETTINGS))
    for side in list(SIDES)[1:]:
        ratios = {name: seconds[side][name] / seconds["PyTorch"][name] for name, _, _ in SETTINGS}
        print(f"{side + '/PyTorch':22}" + "".join(f"{ratios[name]:10.3f}" + " " * 4 for name, _, _ in SETTINGS))
    print(f"\nLockstep/PyTorch at 2 ranks: {bench.goal(ratios['DDP, 2 ranks'], 0.87)}")
    print(f"Lockstep's DDP at 1 rank/bare loop, in turns within one process: {bench.goal(one_rank['ratio'], 1.02)}")
    print(f"losses of both sides equal to the last bit: {'yes' if same_losses else 'NO'}")


def main():
    flags = parse_flags()
    if not flags.data_dir.exists():
        bench.finished([bench.program("02_mnist"), "--epochs", "1", "--max-steps", "1", "--download", "--data-dir",
                        str(flags.data_dir)], flags.timeout)
    epochs = measure(flags)
    one_rank = overhead(flags)
    seconds = {side: {name: statistics.median(run["seconds"] for run in runs) for name, runs in epochs[side].items()}
               for side in SIDES}
    if flags.json:
        print(json.dumps({"epochs": epochs, "median_seconds": seconds, "ddp_overhead": one_rank,
                          "same_losses": have_same_losses(epochs)}))
    else:
        print_tables(seconds, one_rank, have_same_losses(epochs))


if __name__ == "__main__":
    main()
