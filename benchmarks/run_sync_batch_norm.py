#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""What SyncBatchNorm adds to a training step: a ResNet-18 with DistributedDataParallel on two ranks, with BatchNorm and
with SyncBatchNorm, in turns within each run."""
import argparse
import json
import statistics

import bench_support as bench

CASES = {"4 images of 32 x 32": ["--batch", "4"],
         "4 images, channels last": ["--batch", "4", "--channels-last"],
         "2 images of 64 x 64": ["--batch", "2", "--size", "64", "--steps", "12"],
         "4 images of 32 x 32, gloo": ["--batch", "4", "--backend", "gloo"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--timeout", type=int, default=600, help="seconds that one run may take")
    parser.add_argument("--json", action="store_true")
    flags = parser.parse_args()
    results = {}
    for _ in range(flags.rounds):
        for name, arguments in CASES.items():
            output = bench.launch("lockstep run", [bench.program("sync_batch_norm"), *arguments], 2, flags.timeout)
            line = json.loads(output[output.index("{"):output.rindex("}") + 1])
            results.setdefault(name, []).append((line["plain_seconds"], line["synced_seconds"]))
    rows = {name: {"batch_norm_ms": 1e3 * statistics.median(plain for plain, _ in each),
                   "sync_batch_norm_ms": 1e3 * statistics.median(synced for _, synced in each),
                   "ratio": statistics.median(synced / plain for plain, synced in each)} for name, each in results.items()}
    if flags.json:
        print(json.dumps(rows))
        return
    for name, row in rows.items():
        print(f"{name:28}{row['batch_norm_ms']:8.1f} ms{row['sync_batch_norm_ms']:8.1f} ms   {bench.goal(row['ratio'], 1.15)}")


if __name__ == "__main__":
    main()
