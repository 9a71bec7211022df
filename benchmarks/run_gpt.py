#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Trains the GPT of examples/gpt.cpp on two ranks with Lockstep and with PyTorch's DDP over Gloo, in alternating slices: tokens
per second, and the largest difference of the losses."""
import csv
import json
import re
import statistics
import tempfile

import bench_support as bench


def lockstep(arguments, timeout):
    with tempfile.TemporaryDirectory() as folder:
        command = [bench.program("lockstep"), "run", "--nproc-per-node", "2",
                   *bench.pinned([bench.program("gpt"), *arguments, "--run", folder])]
        output = bench.finished(command, timeout, bench.rank_environment(2))
        with open(f"{folder}/log.csv", encoding="utf-8") as file:
            losses = [float(row["loss"]) for row in csv.DictReader(file)]
    return {"tokens_per_second": float(re.search(r"([0-9.]+) tokens/s", output)[1]), "losses": losses}


def main():
    parser = bench.parser(__doc__, rounds=3)
    parser.add_argument("--steps", type=int, default=100, help="steps of the optimizer, a multiple of 10")
    parser.add_argument("--bf16", action="store_true", help="mixed precision on both sides")
    flags = parser.parse_args()
    arguments = ["--text", str(bench.ROOT / "README.md"), "--steps", str(flags.steps), *["--bf16"] * flags.bf16]
    sides = {"PyTorch": lambda: bench.launch("torchrun", [*bench.twin("gpt"), *arguments], 2, flags.timeout)[-1],
             "Lockstep": lambda: lockstep(arguments, flags.timeout)}
    results = bench.interleave(sides, flags.rounds)
    if flags.json:
        print(json.dumps(results))
        return
    rates = {side: statistics.median(run["tokens_per_second"] for run in runs) for side, runs in results.items()}
    for side, rate in rates.items():
        print(f"{side:10}{rate:10.0f} tokens/s   last loss {results[side][0]['losses'][-1]!r}")
    pairs = zip(results["PyTorch"][0]["losses"], results["Lockstep"][0]["losses"], strict=True)
    print(f"largest difference of a loss: {max(abs(left - right) for left, right in pairs):.2g}")
    print(f"Lockstep is {rates['Lockstep'] / rates['PyTorch']:.2f} times as fast (goal: at least 1.2)")


if __name__ == "__main__":
    main()
