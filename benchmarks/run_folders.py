#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Opens a folder of many (empty) files in 1000 classes: seconds with torchvision's ImageFolder, and with Lockstep's
without an index cache, while it writes one, and with it. The page cache is warm."""
import json
import os
import pathlib
import statistics
import tempfile
import time

import bench_support as bench

CLASSES = 1000
SECONDS_UNTIL_CACHED = 3  # a folder that changed in the last two seconds is not cached


def make_files(root, count):
    for number in range(CLASSES):
        folder = pathlib.Path(root, f"n{number:08}")
        folder.mkdir(parents=True)
        for file in range(count // CLASSES):
            os.close(os.open(folder / f"n{number:08}_{file}.JPEG", os.O_CREAT | os.O_WRONLY))


def opening(command, root, flags):
    output = bench.finished([*command, "--folder", root, "--passes", "0"], flags.timeout, stderr=None)
    return json.loads(output)["opening_seconds"]


def main():
    parser = bench.recording_parser(__doc__, rounds=3)
    parser.add_argument("--files", type=int, default=1_200_000)
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root, index = f"{temporary}/files", f"{temporary}/index"
        bench.progress(f"making {flags.files} files")
        make_files(root, flags.files)
        time.sleep(SECONDS_UNTIL_CACHED)
        commands = {"torchvision": bench.twin("images"), "no index": bench.benchmark("images"),
                    "index": [*bench.benchmark("images"), "--index", index]}
        first = opening(commands["index"], root, flags)
        sides = {side: lambda command=command: opening(command, root, flags) for side, command in commands.items()}
        runs = bench.interleave(sides, flags.rounds)
        bench.progress("removing the files")
    seconds = {side: statistics.median(values) for side, values in runs.items()} | {"index, first time": first}
    table = bench.table(f"Opening a folder of {flags.files} files, seconds",
                        ["torchvision", "Lockstep", "Lockstep, writing the index", "Lockstep, with the index"],
                        [[runs["torchvision"], runs["no index"], first, runs["index"]]])
    bench.report(flags, seconds, {"folders": [table]}, [f"with an index: {bench.goal(seconds['index'], 1)} s"])


if __name__ == "__main__":
    main()
