#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""The overhead of SyncBatchNorm: training steps of a ResNet-18 with DistributedDataParallel on two ranks, with BatchNorm and
with SyncBatchNorm, interleaved within each run."""
import statistics

import bench_support as bench

CASES = {"4 images of 32 x 32": ["--batch", "4"],
         "4 images, channels last": ["--batch", "4", "--channels-last"],
         "2 images of 64 x 64": ["--batch", "2", "--size", "64", "--steps", "12"],
         "4 images of 32 x 32, gloo": ["--batch", "4", "--backend", "gloo"]}


def main():
    flags = bench.recording_parser(__doc__, rounds=3).parse_args()
    results = bench.interleave(
        {name: lambda arguments=arguments: bench.launch("lockstep run", [*bench.benchmark("sync_batch_norm"), *arguments], 2,
                                                        flags.timeout)[-1]
         for name, arguments in CASES.items()}, flags.rounds)
    rows = {name: {"batch_norm_ms": 1e3 * statistics.median(run["plain_seconds"] for run in runs),
                   "sync_batch_norm_ms": 1e3 * statistics.median(run["synced_seconds"] for run in runs),
                   "ratio": statistics.median(run["synced_seconds"] / run["plain_seconds"] for run in runs)}
            for name, runs in results.items()}
    table = bench.table("ResNet-18, two ranks, milliseconds per step", ["images per rank", "BatchNorm", "SyncBatchNorm",
                                                                       "step with SyncBatchNorm / with BatchNorm"],
                        [[name, bench.of_rounds(runs, "plain_seconds", 1e3), bench.of_rounds(runs, "synced_seconds", 1e3), rows[name]["ratio"]]
                         for name, runs in results.items()])
    bench.report(flags, rows, {"sync_batch_norm": [table]}, ["Goal: a ratio of at most 1.15."])


if __name__ == "__main__":
    main()
