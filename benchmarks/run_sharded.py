#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Training steps with AdamW on several ranks: DistributedDataParallel, ZeroRedundancyOptimizer and fully_shard() with shared and
gathered parameters, beside PyTorch's fully_shard over Gloo, in alternating slices; and the memory of all ranks."""
import json
import statistics

import bench_support as bench

STEPS = {"mlp": 8, "gpt": 30}
MODES = ["ddp", "zero1", "shared", "gathered"]


def run(flags, net, mode, ranks=2, *arguments):
    command = [bench.program("sharded_step"), "--net", net, "--mode", mode, "--steps", str(STEPS[net]), *arguments]
    return bench.launch("lockstep run", command, ranks, flags.timeout)[-1]


def run_pytorch(flags, net):
    command = [*bench.twin("sharded_step"), "--net", net, "--steps", str(STEPS[net])]
    return bench.launch("torchrun", command, 2, flags.timeout)[-1]


def measure(flags, net):
    sides = {mode: lambda mode=mode: run(flags, net, mode) for mode in MODES}
    sides["gathered, gloo"] = lambda: run(flags, net, "gathered", 2, "--backend", "gloo")
    sides["PyTorch"] = lambda: run_pytorch(flags, net)
    bench.progress(f"net {net}")
    rounds = bench.interleave(sides, flags.rounds)
    medians = {side: {key: statistics.median(each[key] for each in results)
                      for key in ("seconds", "megabytes", "bytes_per_parameter", "loss")} for side, results in rounds.items()}
    return medians


def main():
    parser = bench.parser(__doc__, rounds=3)
    parser.add_argument("--nets", nargs="+", choices=STEPS, default=list(STEPS))
    flags = parser.parse_args()
    results = {net: measure(flags, net) for net in flags.nets}
    if flags.json:
        print(json.dumps(results))
        return
    for net, sides in results.items():
        print(f"{net + ', 2 ranks':16}{'step':>12}{'of DDP':>8}{'of PyTorch':>12}{'memory':>10}{'bytes a parameter':>19}")
        for side, each in sides.items():
            print(f"{side:16}{each['seconds'] * 1e3:>9.1f} ms{each['seconds'] / sides['ddp']['seconds']:>8.2f}"
                  f"{each['seconds'] / sides['PyTorch']['seconds']:>12.2f}{each['megabytes']:>7.0f} MB"
                  f"{each['bytes_per_parameter']:>19.1f}")
    print("\nGoals: shared at most 0.9 of DDP; of PyTorch's fully_shard at most 0.35 (mlp) and 0.7 (gpt); 32 bytes a parameter for "
          "DDP, 18 for shared (16, and one group's gradients a rank).")


if __name__ == "__main__":
    main()
