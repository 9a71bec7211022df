#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Saving and loading a state dict: Lockstep beside torch.save, torch.load and the safetensors package, in alternating slices.
Files stay in the page cache, so neither side waits for the disk. `save` writes a new file, `save_over` replaces one:
torch.save truncates it first, Lockstep keeps it until the new file is complete."""
import json
import statistics
import tempfile

import bench_support as bench

KINDS = ["save", "save_over", "load", "load_mmap", "save_safetensors", "open_safetensors", "load_safetensors", "async_stall"]


def run(command, flags):
    with tempfile.TemporaryDirectory(dir=flags.folder) as folder:
        return bench.run_pinned([*command, "--megabytes", str(flags.megabytes), "--folder", folder], 2, flags.timeout)[0]


def medians(runs, side):
    times = {}
    for name, results in runs.items():
        for kind, values in ((kind, values) for result in results for kind, values in result.items() if side in name):
            times.setdefault(kind, []).extend(values)
    return {kind: statistics.median(times[kind]) for kind in KINDS if kind in times}


def main():
    parser = bench.parser(__doc__, rounds=3)
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--folder", help="folder for the files (default: the temporary folder)")
    flags = parser.parse_args()
    programs = {f"{kind}, Lockstep": [bench.program("checkpoint"), kind] for kind in ("pt", "safetensors", "async")}
    programs |= {f"{kind}, Python": [*bench.twin("checkpoint"), kind] for kind in ("pt", "safetensors")}
    runs = bench.interleave({name: lambda command=programs[name]: run(command, flags) for name in sorted(programs)},
                            flags.rounds)
    ours, python = medians(runs, "Lockstep"), medians(runs, "Python")
    if flags.json:
        print(json.dumps({"lockstep": ours, "python": python}))
        return
    print(f"{'ms':20}{'Lockstep':>10}{'Python':>10}{'faster':>9}")
    for kind in KINDS:
        beside = f"{python[kind] * 1e3:>10.1f}{python[kind] / ours[kind]:>8.2f}x" if kind in python else ""
        print(f"{kind:20}{ours[kind] * 1e3:>10.1f}{beside}")
    print()
    print("save of a new file / torch.save:", bench.goal(ours["save"] / python["save"], 1))
    print("load / torch.load(mmap=True):", bench.goal(ours["load_mmap"] / python["load_mmap"], 1))
    print("stall of an async save / torch.save:", bench.goal(ours["async_stall"] / python["save"], 0.1))
    print("opening safetensors, ms:", bench.goal(ours["open_safetensors"] * 1e3, 10))


if __name__ == "__main__":
    main()
