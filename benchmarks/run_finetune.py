#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Trains examples/image_folder_finetune on two ranks with Lockstep and with PyTorch and torchvision
(pytorch/image_folder_finetune.py), in alternating slices on the same pictures of 128 x 96: images per second between the first
and the last step of an epoch, and the largest difference of the losses."""
import statistics
import tempfile

import bench_support as bench
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

FAST = ["--bf16", "--channels-last"]
SETTINGS = {"ResNet-18, 64 x 64, 4 per rank": (4, ["--size", "64"]),
            "ResNet-18, 64 x 64, 4 per rank, bf16, channels_last": (4, ["--size", "64", *FAST]),
            "ResNet-34, 224 x 224, 8 per rank": (8, ["--size", "224", "--arch", "resnet34"]),
            "ResNet-34, 224 x 224, 8 per rank, bf16, channels_last": (8, ["--size", "224", "--arch", "resnet34", *FAST])}


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


def row(setting, results, batch, epochs):
    steps = len(results["Lockstep"][0]["losses"]) // epochs
    rates = {side: [rate(run["times"], steps, 2 * batch) for run in runs] for side, runs in results.items()}
    pairs = zip(results["PyTorch"][0]["losses"], results["Lockstep"][0]["losses"], strict=True)
    difference = max(abs(left - right) for left, right in pairs)
    accuracy = [round(results[side][0]["accuracy"][-1], 6) for side in ("PyTorch", "Lockstep")]
    return [setting, rates["PyTorch"], rates["Lockstep"], bench.ratio(rates["Lockstep"], rates["PyTorch"]), f"{difference:.2g}",
            "equal" if accuracy[0] == accuracy[1] else f"{accuracy[0]}, {accuracy[1]}"]


def main():
    parser = bench.recording_parser(__doc__, rounds=3)
    parser.add_argument("--epochs", type=int, default=2, help="epochs per slice")
    flags = parser.parse_args()
    everything, rows = {}, []
    with tempfile.TemporaryDirectory() as temporary:
        folder = f"{temporary}/stripes"
        bench.progress("drawing pictures")
        bench.finished([bench.program("image_folder_finetune"), "--folder", folder, "--epochs", "0"], flags.timeout)
        for setting, (batch, switches) in SETTINGS.items():
            everything[setting] = bench.interleave(sides_of(folder, flags, batch, switches), flags.rounds)
            rows.append(row(setting, everything[setting], batch, flags.epochs))
    table = bench.table("image_folder_finetune, images per second",
                        ["setting", "PyTorch", "Lockstep", "Lockstep / PyTorch", "loss differs by", "accuracy"], rows)
    bench.report(flags, everything, {"finetune": [table]})


if __name__ == "__main__":
    main()
