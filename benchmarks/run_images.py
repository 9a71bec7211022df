#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Decodes a folder of JPEG photographs, with RandomResizedCrop(224), flip and Normalize, by Lockstep's loader and by
torchvision with Python's, in alternating slices on the same cores: images per second, and the memory (PSS) of all
processes. Lockstep's workers are threads, Python's are processes. Python decodes by PIL or by torchvision.io; the faster
one counts."""
import json
import os
import statistics
import subprocess
import tempfile
import threading

import bench_support as bench

# width, height, JPEG quality, and how many times fewer files, and images per batch, than of the first kind
PHOTOGRAPHS = {"500 x 375": (500, 375, 90, 1), "2000 x 1500": (2000, 1500, 90, 4), "4000 x 3000": (4000, 3000, 80, 16)}
BATCH = 64
GROWTH_PASSES = 50


def finished(command, cores, timeout):
    """The program's JSON, and MiB."""
    pinned = ["taskset", "-c", ",".join(map(str, cores)), *command]
    with subprocess.Popen(pinned, stdout=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}) as process:
        memory = bench.Pss(process)
        memory.start()
        output = process.communicate(timeout=timeout)[0]
        memory.join()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: ended with {process.returncode}")
    return json.loads(output), memory.most


def measure(command, cores, timeout):
    """Images per second after the first pass, and MiB."""
    output, memory = finished(command, cores, timeout)
    return statistics.median(output["images_per_second"][1:]), memory


def growth(folder, flags):
    """Resident MiB of Lockstep after the fifth and after the last of 50 passes."""
    command = [bench.program("images"), "--folder", folder, "--workers", "2", "--passes", str(GROWTH_PASSES)]
    resident = finished(command, bench.cores(2), flags.timeout)[0]["resident_mib"]
    return resident[4], resident[-1]


def both(command, timeout):
    """Two one-worker processes, each on its core."""
    results = [None, None]

    def run(number, core):
        results[number] = measure(command, [core], timeout)

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(bench.cores(2))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(rate for rate, _ in results), sum(memory for _, memory in results)


def sides_of(folder, batch, flags):
    """{(side, workers): function}"""
    passes = ["--passes", str(flags.passes), "--batch-size", str(batch)]
    lockstep = [bench.program("images"), "--folder", folder, *passes]
    python = [*bench.twin("images"), "--folder", folder, *passes]
    commands = {"PIL": [*python, "--kind", "pil"], "torchvision.io": [*python, "--kind", "tensor"], "Lockstep": lockstep,
                "Lockstep, scaled": [*lockstep, "--scaled"]}
    sides = {}
    for side, command in commands.items():
        for workers in (1, 2):
            sides[side, workers] = lambda command=command, workers=workers: measure(
                [*command, "--workers", str(workers)], bench.cores(workers), flags.timeout)
    sides["Lockstep", "two processes of 1"] = lambda: both([*lockstep, "--workers", "1"], flags.timeout)
    return sides


def median_of(runs):
    return {key: tuple(statistics.median(values) for values in zip(*results)) for key, results in runs.items()}


def report(size, medians):
    print(f"\n{size}\n{'':20}{'workers':>20}{'images/s':>12}{'MiB':>8}{'of the faster Python':>24}")
    for (side, workers), (rate, memory) in medians.items():
        base = max(medians[python, 2 if workers == "two processes of 1" else workers][0] for python in ("PIL", "torchvision.io"))
        print(f"{side:20}{workers:>20}{rate:12.0f}{memory:8.0f}{rate / base:24.2f}")
    threads, processes = medians["Lockstep", 2][0], medians["Lockstep", "two processes of 1"][0]
    least = min(medians[python, 2][1] for python in ("PIL", "torchvision.io"))
    print(f"two workers / two processes of one worker: {threads / processes:.3f} (goal: at least 0.95)")
    for workers in (1, 2):
        base = max(medians[python, workers][0] for python in ("PIL", "torchvision.io"))
        scaled = medians["Lockstep, scaled", workers][0] / base
        print(f"scaled decoding / the faster Python, {workers} workers: {scaled:.2f} (goal for large photographs: at least 2.5)")
    print(f"memory with two workers / Python's: {bench.goal(medians['Lockstep', 2][1] / least, 0.6)}")


def main():
    parser = bench.parser(__doc__, rounds=3)
    parser.add_argument("--count", type=int, default=1024, help="photographs of 500 x 375; fewer of larger ones")
    parser.add_argument("--passes", type=int, default=3, help="passes per slice; the first does not count")
    flags = parser.parse_args()
    everything = {}
    with tempfile.TemporaryDirectory() as temporary:
        for size, (width, height, quality, fewer) in PHOTOGRAPHS.items():
            folder = f"{temporary}/{width}"
            bench.progress(f"writing photographs of {size}")
            numbers = flags.count // fewer, width, height, quality
            bench.finished([*bench.twin("photographs"), folder, *map(str, numbers)], flags.timeout)
            medians = median_of(bench.interleave(sides_of(folder, BATCH // fewer, flags), flags.rounds))
            everything[size] = {f"{side}, {workers}": values for (side, workers), values in medians.items()}
            if not flags.json:
                report(size, medians)
        bench.progress(f"{GROWTH_PASSES} passes")
        begin, end = growth(f"{temporary}/500", flags)
        everything["resident MiB after 5 and 50 passes"] = begin, end
        if not flags.json:
            print(f"resident memory after 5 passes {begin:.0f} MiB, after {GROWTH_PASSES} passes {end:.0f} MiB")
    if flags.json:
        print(json.dumps(everything))


if __name__ == "__main__":
    main()
