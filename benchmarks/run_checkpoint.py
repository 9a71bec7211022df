#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Saving and loading a state dict: Lockstep beside torch.save, torch.load and the safetensors package, in alternating slices.
Files stay in the page cache, so neither side waits for the disk. `save` writes a new file, `save_over` replaces one:
torch.save truncates it first, Lockstep keeps it until the new file is complete."""
import statistics
import tempfile

import bench_support as bench

KINDS = {"save": "save, new file", "save_over": "save, replace", "load": "load", "load_mmap": "load with mmap",
         "save_safetensors": "save a safetensors file", "open_safetensors": "open a safetensors file",
         "load_safetensors": "load a safetensors file", "async_stall": "asynchronous save, delay of training",
         "commit_resnet18": "commit of ResNet-18 with SGD, 94 MB", "commit_gpt": "commit of the GPT of examples/ with AdamW, 10 MB"}


def run(command, flags):
    with tempfile.TemporaryDirectory(dir=flags.folder) as folder:
        return bench.run_pinned([*command, "--megabytes", str(flags.megabytes), "--folder", folder], 2, flags.timeout)[0]


def times_of(runs, side):
    """{kind: seconds of all rounds}"""
    times = {}
    for name, results in runs.items():
        for kind, values in ((kind, values) for result in results for kind, values in result.items() if side in name):
            times.setdefault(kind, []).extend(values)
    return {kind: times[kind] for kind in KINDS if kind in times}


def main():
    parser = bench.recording_parser(__doc__, rounds=3)
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--folder", help="folder for the files (default: the temporary folder)")
    flags = parser.parse_args()
    programs = {f"{kind}, Lockstep": [*bench.benchmark("checkpoint"), kind] for kind in ("pt", "safetensors", "async", "commit")}
    programs |= {f"{kind}, Python": [*bench.twin("checkpoint"), kind] for kind in ("pt", "safetensors")}
    runs = bench.interleave({name: lambda command=programs[name]: run(command, flags) for name in sorted(programs)},
                            flags.rounds)
    times, python_times = times_of(runs, "Lockstep"), times_of(runs, "Python")
    ours, python = ({kind: statistics.median(values) for kind, values in side.items()} for side in (times, python_times))
    rows = [[KINDS[kind], *([1e3 * one for one in side[kind]] if kind in side else None for side in (times, python_times))] for kind in times]
    table = bench.table(f"A state dict of {flags.megabytes} MB, milliseconds", ["operation", "Lockstep", "Python"], rows)
    bench.report(flags, {"lockstep": ours, "python": python}, {"checkpoint": [table]}, [
        f"save of a new file / torch.save: {bench.goal(ours['save'] / python['save'], 1)}",
        f"load / torch.load(mmap=True): {bench.goal(ours['load_mmap'] / python['load_mmap'], 1)}",
        f"stall of an async save / torch.save: {bench.goal(ours['async_stall'] / python['save'], 0.1)}",
        f"opening safetensors, ms: {bench.goal(ours['open_safetensors'] * 1e3, 10)}"])


if __name__ == "__main__":
    main()
