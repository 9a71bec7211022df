#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""The overhead of SyncBatchNorm: training steps of a ResNet-18 with DistributedDataParallel on two ranks, with BatchNorm and
with SyncBatchNorm, interleaved within each run."""
import json
import statistics

import bench_support as bench

CASES = {"4 images of 32 x 32": ["--batch", "4"],
         "4 images, channels last": ["--batch", "4", "--channels-last"],
         "2 images of 64 x 64": ["--batch", "2", "--size", "64", "--steps", "12"],
         "4 images of 32 x 32, gloo": ["--batch", "4", "--backend", "gloo"]}


def main():
    flags = bench.parser(__doc__, rounds=3).parse_args()
    results = bench.interleave(
        {name: lambda arguments=arguments: bench.launch("lockstep run", [bench.program("sync_batch_norm"), *arguments], 2,
                                                        flags.timeout)[-1]
         for name, arguments in CASES.items()}, flags.rounds)
    rows = {name: {"batch_norm_ms": 1e3 * statistics.median(run["plain_seconds"] for run in runs),
                   "sync_batch_norm_ms": 1e3 * statistics.median(run["synced_seconds"] for run in runs),
                   "ratio": statistics.median(run["synced_seconds"] / run["plain_seconds"] for run in runs)}
            for name, runs in results.items()}
    if flags.json:
        print(json.dumps(rows))
        return
    for name, row in rows.items():
        print(f"{name:28}{row['batch_norm_ms']:8.1f} ms{row['sync_batch_norm_ms']:8.1f} ms   {bench.goal(row['ratio'], 1.15)}")


if __name__ == "__main__":
    main()
