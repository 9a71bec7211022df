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
BOTH = "two processes of 1"
PYTHON = "PIL", "torchvision.io"
NAMES = {"PIL": "PIL, PyTorch's DataLoader", "torchvision.io": "torchvision.io, PyTorch's DataLoader",
         "Lockstep, scaled": "Lockstep, scaled decoding"}


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
    command = [*bench.benchmark("images"), "--folder", folder, "--workers", "2", "--passes", str(GROWTH_PASSES)]
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
    lockstep = [*bench.benchmark("images"), "--folder", folder, *passes]
    python = [*bench.twin("images"), "--folder", folder, *passes]
    commands = {"PIL": [*python, "--kind", "pil"], "torchvision.io": [*python, "--kind", "tensor"], "Lockstep": lockstep,
                "Lockstep, scaled": [*lockstep, "--scaled"]}
    sides = {}
    for side, command in commands.items():
        for workers in (1, 2):
            sides[side, workers] = lambda command=command, workers=workers: measure(
                [*command, "--workers", str(workers)], bench.cores(workers), flags.timeout)
    sides["Lockstep", BOTH] = lambda: both([*lockstep, "--workers", "1"], flags.timeout)
    return sides


def fastest_python(rates, workers):
    return max(rates[python, workers] for python in PYTHON)


def rows_of(size, runs):
    """Of {(side, workers): [(images per second, MiB) of each round]}"""
    rates = {key: statistics.median(rate for rate, _ in results) for key, results in runs.items()}
    for (side, workers), results in runs.items():
        base = fastest_python(rates, 2 if workers == BOTH else workers)
        yield [size, NAMES.get(side, side), workers, *map(list, zip(*results)), rates[side, workers] / base]


def ratios_of(size, runs):
    rates, memory = ({key: statistics.median(one[which] for one in results) for key, results in runs.items()} for which in (0, 1))
    least = min(memory[python, 2] for python in PYTHON)
    scaled = (rates["Lockstep, scaled", workers] / fastest_python(rates, workers) for workers in (1, 2))
    return [size, rates["Lockstep", 2] / rates["Lockstep", BOTH], *scaled, memory["Lockstep", 2] / least]


def main():
    parser = bench.recording_parser(__doc__, rounds=3)
    parser.add_argument("--count", type=int, default=1024, help="photographs of 500 x 375; fewer of larger ones")
    parser.add_argument("--passes", type=int, default=3, help="passes per slice; the first does not count")
    flags = parser.parse_args()
    rounds, everything = {}, {}
    with tempfile.TemporaryDirectory() as temporary:
        for size, (width, height, quality, fewer) in PHOTOGRAPHS.items():
            folder = f"{temporary}/{width}"
            bench.progress(f"writing photographs of {size}")
            numbers = flags.count // fewer, width, height, quality
            bench.finished([*bench.twin("photographs"), folder, *map(str, numbers)], flags.timeout)
            rounds[size] = bench.interleave(sides_of(folder, BATCH // fewer, flags), flags.rounds)
            everything[size] = {f"{side}, {workers}": results for (side, workers), results in rounds[size].items()}
        bench.progress(f"{GROWTH_PASSES} passes")
        begin, end = growth(f"{temporary}/500", flags)
    everything["resident MiB after 5 and 50 passes"] = begin, end
    images = bench.table("RandomResizedCrop(224), flip, conversion, Normalize", ["photographs", "side", "workers", "images/s", "MiB", "ratio"],
                         [row for size, runs in rounds.items() for row in rows_of(size, runs)])
    ratios = bench.table("Ratios", ["photographs", "two workers / two processes of one worker", "scaled decoding / Python, 1 worker",
                                    "scaled decoding / Python, 2 workers", "memory / Python's, two workers"],
                         [ratios_of(size, runs) for size, runs in rounds.items()])
    bench.report(flags, everything, {"images": [images, ratios]}, [
        "Goals: two workers at least 0.95 of two processes; scaled decoding of large photographs at least 2.5; memory at most 0.6.",
        f"Resident memory after 5 passes {begin:.0f} MiB, after {GROWTH_PASSES} passes {end:.0f} MiB."])


if __name__ == "__main__":
    main()
