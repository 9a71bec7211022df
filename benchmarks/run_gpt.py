#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Trains the GPT of examples/gpt.cpp on two ranks with Lockstep and with PyTorch's DDP over Gloo, in alternating slices: tokens
per second, and the largest difference of the losses."""
import csv
import re
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
    parser = bench.recording_parser(__doc__, rounds=3)
    parser.add_argument("--steps", type=int, default=100, help="steps of the optimizer, a multiple of 10")
    parser.add_argument("--bf16", action="store_true", help="mixed precision on both sides")
    flags = parser.parse_args()
    arguments = ["--text", str(bench.ROOT / "README.md"), "--steps", str(flags.steps), *["--bf16"] * flags.bf16]
    sides = {"PyTorch": lambda: bench.launch("torchrun", [*bench.twin("gpt"), *arguments], 2, flags.timeout)[-1],
             "Lockstep": lambda: lockstep(arguments, flags.timeout)}
    results = bench.interleave(sides, flags.rounds)
    rates = {side: bench.of_rounds(runs, "tokens_per_second") for side, runs in results.items()}
    ratio = bench.ratio(rates["Lockstep"], rates["PyTorch"])
    table = bench.table("gpt, tokens per second", ["setting", "PyTorch", "Lockstep", "Lockstep / PyTorch"],
                        [["bf16" if flags.bf16 else "float32", rates["PyTorch"], rates["Lockstep"], ratio]])
    pairs = zip(results["PyTorch"][0]["losses"], results["Lockstep"][0]["losses"], strict=True)
    bench.report(flags, results, {"gpt": [table]}, [
        *(f"{side}: last loss {runs[0]['losses'][-1]!r}" for side, runs in results.items()),
        f"largest difference of a loss: {max(abs(left - right) for left, right in pairs):.2g}",
        f"Lockstep is {ratio:.2f} times as fast (goal: at least 1.2)"])


if __name__ == "__main__":
    main()
