#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Trains examples/image_folder_finetune on two ranks with Lockstep and with PyTorch and torchvision
(pytorch/image_folder_finetune.py), in alternating slices on the same pictures of 128 x 96: images per second between the first
and the last step of an epoch, and the largest difference of the losses."""
import json
import statistics
import tempfile

import bench_support as bench
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

FAST = ["--bf16", "--channels-last"]
SETTINGS = {"64 x 64, ResNet-18, 4 per rank": (4, ["--size", "64"]),
            "64 x 64, bf16, channels_last": (4, ["--size", "64", *FAST]),
            "224 x 224, ResNet-34, 8 per rank": (8, ["--size", "224", "--arch", "resnet34"]),
            "224 x 224, bf16, channels_last": (8, ["--size", "224", "--arch", "resnet34", *FAST])}


def rate(times, steps, images_per_step):
    """Images per second, the median over the epochs."""
    epochs = [times[first:first + steps] for first in range(0, len(times), steps)]
    return statistics.median((steps - 1) * images_per_step / (epoch[-1] - epoch[0]) for epoch in epochs)


def lockstep(arguments, timeout):
    with tempfile.TemporaryDirectory() as run:
        command = [bench.program("lockstep"), "run", "--nproc-per-node", "2",
                   *bench.pinned([bench.program("image_folder_finetune"), *arguments, "--run", run])]
        bench.finished(command, timeout, bench.rank_environment(2))
        events = EventAccumulator(f"{run}/events").Reload()
        losses, accuracy = events.Scalars("loss"), events.Scalars("accuracy")
    return {"losses": [event.value for event in losses], "times": [event.wall_time for event in losses],
            "accuracy": [event.value for event in accuracy]}


def sides_of(folder, flags, batch, switches):
    arguments = ["--folder", folder, "--epochs", str(flags.epochs), "--batch-size", str(batch), *switches]
    python = [*bench.twin("image_folder_finetune"), *arguments]
    return {"PyTorch": lambda: bench.launch("torchrun", python, 2, flags.timeout)[-1],
            "Lockstep": lambda: lockstep(arguments, flags.timeout)}


def report(setting, results, batch, epochs):
    steps = len(results["Lockstep"][0]["losses"]) // epochs
    rates = {side: statistics.median(rate(run["times"], steps, 2 * batch) for run in runs) for side, runs in results.items()}
    pairs = zip(results["PyTorch"][0]["losses"], results["Lockstep"][0]["losses"], strict=True)
    difference = max(abs(left - right) for left, right in pairs)
    accuracy = [round(results[side][0]["accuracy"][-1], 6) for side in ("PyTorch", "Lockstep")]
    print(f"{setting:36}{rates['PyTorch']:10.1f}{rates['Lockstep']:10.1f}{rates['Lockstep'] / rates['PyTorch']:8.2f}"
          f"{difference:14.2g}  {'equal' if accuracy[0] == accuracy[1] else accuracy}", flush=True)


def main():
    parser = bench.parser(__doc__, rounds=3)
    parser.add_argument("--epochs", type=int, default=2, help="epochs per slice")
    flags = parser.parse_args()
    everything = {}
    if not flags.json:
        print(f"{'images per second, 2 ranks':36}{'PyTorch':>10}{'Lockstep':>10}{'ratio':>8}{'loss differs':>14}  accuracy")
    with tempfile.TemporaryDirectory() as temporary:
        folder = f"{temporary}/stripes"
        bench.progress("drawing pictures")
        bench.finished([bench.program("image_folder_finetune"), "--folder", folder, "--epochs", "0"], flags.timeout)
        for setting, (batch, switches) in SETTINGS.items():
            everything[setting] = bench.interleave(sides_of(folder, flags, batch, switches), flags.rounds)
            if not flags.json:
                report(setting, everything[setting], batch, flags.epochs)
    if flags.json:
        print(json.dumps(everything))


if __name__ == "__main__":
    main()
