#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Saving and loading a state dict: Lockstep beside torch.save, torch.load and the safetensors package, in turns, through the
page cache: neither side waits for the disk. `save` writes a new file, `save_over` over one that is there: torch.save empties
that one first, Lockstep keeps it until the new one is complete."""
import argparse
import json
import os
import statistics
import tempfile

import bench_support as bench

KINDS = ["save", "save_over", "load", "load_mmap", "save_safetensors", "open_safetensors", "load_safetensors", "async_stall"]


def collect(times, command, flags):
    """One program in a folder of its own."""
    cores = ",".join(map(str, bench.cores(2)))
    with tempfile.TemporaryDirectory(dir=flags.folder) as folder:
        output = bench.finished(["taskset", "-c", cores, *command, "--folder", folder], flags.timeout,
                                os.environ | {"OMP_NUM_THREADS": "2"})
    for name, values in json.loads(next(line for line in output.splitlines() if line.startswith("{"))).items():
        if name in KINDS:
            times.setdefault(name, []).extend(values)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--folder", help="where files go (default: the folder of temporary files)")
    parser.add_argument("--timeout", type=int, default=600, help="seconds that one run may take")
    parser.add_argument("--json", action="store_true")
    flags = parser.parse_args()
    ours, python = {}, {}
    for _ in range(flags.rounds):
        for what in ("pt", "safetensors", "async"):
            arguments = [what, "--megabytes", str(flags.megabytes)]
            collect(ours, [bench.program("checkpoint"), *arguments], flags)
            if what != "async":
                collect(python, [bench.PYTHON, str(bench.ROOT / "benchmarks/pytorch/checkpoint.py"), *arguments], flags)
    ours, python = ({name: statistics.median(values) for name, values in side.items()} for side in (ours, python))
    if flags.json:
        print(json.dumps({"lockstep": ours, "python": python}))
        return
    print(f"{'ms':20}{'Lockstep':>10}{'Python':>10}{'faster':>9}")
    for kind in KINDS:
        beside = f"{python[kind] * 1e3:>10.1f}{python[kind] / ours[kind]:>8.2f}x" if kind in python else ""
        print(f"{kind:20}{ours[kind] * 1e3:>10.1f}{beside}")
    print()
    print("save of a new file over torch.save:", bench.goal(ours["save"] / python["save"], 1))
    print("load over torch.load(mmap=True):", bench.goal(ours["load_mmap"] / python["load_mmap"], 1))
    print("stall of an async save over torch.save:", bench.goal(ours["async_stall"] / python["save"], 0.1))
    print("opening safetensors, ms:", bench.goal(ours["open_safetensors"] * 1e3, 10))


if __name__ == "__main__":
    main()
