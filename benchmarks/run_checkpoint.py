#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Saving and loading a state dict: Lockstep beside torch.save, torch.load and the safetensors package, in turns, through the
page cache (but for "save_to_disk", which waits for the disk as Python does not)."""
import argparse
import json
import os
import statistics
import tempfile

import bench_support as bench

KINDS = ["save", "load", "load_mmap", "save_safetensors", "open_safetensors", "load_safetensors", "async_stall", "save_to_disk"]


def run(command, timeout):
    cores = ",".join(map(str, bench.cores(2)))
    output = bench.finished(["taskset", "-c", cores, *command], timeout, os.environ | {"OMP_NUM_THREADS": "2"})
    return json.loads(next(line for line in output.splitlines() if line.startswith("{")))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--folder", help="where files go (default: the folder of temporary files)")
    parser.add_argument("--timeout", type=int, default=600, help="seconds that one run may take")
    parser.add_argument("--json", action="store_true")
    flags = parser.parse_args()
    ours, python = {}, {}
    with tempfile.TemporaryDirectory(dir=flags.folder) as folder:
        arguments = ["--folder", folder, "--megabytes", str(flags.megabytes)]
        for _ in range(flags.rounds):
            for name, values in run([bench.program("checkpoint"), *arguments], flags.timeout).items():
                if name in KINDS:
                    ours.setdefault(name, []).extend(values)
            twin = [bench.PYTHON, str(bench.ROOT / "benchmarks/pytorch/checkpoint.py"), *arguments]
            for name, values in run(twin, flags.timeout).items():
                python.setdefault(name, []).extend(values)
    ours, python = ({name: statistics.median(values) for name, values in side.items()} for side in (ours, python))
    if flags.json:
        print(json.dumps({"lockstep": ours, "python": python}))
        return
    print(f"{'ms':20}{'Lockstep':>10}{'Python':>10}{'faster':>9}")
    for kind in KINDS:
        beside = f"{python[kind] * 1e3:>10.1f}{python[kind] / ours[kind]:>8.2f}x" if kind in python else ""
        print(f"{kind:20}{ours[kind] * 1e3:>10.1f}{beside}")
    print()
    print("save over torch.save:", bench.goal(ours["save"] / python["save"], 1))
    print("load over torch.load(mmap=True):", bench.goal(ours["load_mmap"] / python["load_mmap"], 1))
    print("stall of an async save over torch.save:", bench.goal(ours["async_stall"] / python["save"], 0.1))
    print("opening safetensors, ms:", bench.goal(ours["open_safetensors"] * 1e3, 10))


if __name__ == "__main__":
    main()
