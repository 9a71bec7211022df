#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Compares this build of Lockstep with another one, e.g. that of an older commit: collectives over shm, DDP steps, MNIST and
startup, on two ranks, in alternating slices. Each row is the median over the rounds of this build's time divided by the other's,
with its 95% interval (bootstrap)."""
import json
import pathlib
import random
import statistics

import bench_support as bench
import mnist_runs

COLLECTIVES = "all-reduce,broadcast,reduce,all-gather,reduce-scatter,gather,scatter,all-to-all,send-recv,barrier"
STEPS = {"resnet18": 8, "gpt": 20, "chain": 200}
# Names that a program or a kind of memory had in older builds.
OLDER_NAMES = {"mnist": "02_mnist", "inplace": "zero-copy"}


def collectives(flags, sizes):
    output = bench.finished(["taskset", "-c", ",".join(map(str, bench.cores(2))), bench.program("lockstep"), "bench", COLLECTIVES,
                             "--sizes", sizes, "--backend", "shm", "--no-check", "--json"], flags.timeout, stderr=None)
    return {f"{row['collective']} {row['bytes']} {OLDER_NAMES.get(row['memory'], row['memory'])}": row["microseconds"]
            for row in json.loads(output)}


def ddp(flags):
    seconds = {}
    for net, steps in STEPS.items():
        command = [*bench.benchmark("ddp_step"), "--net", net, "--mode", "ddp", "--steps", str(steps)]
        for ranks in (1, 2):
            seconds[f"ddp {net}, ranks: {ranks}"] = bench.launch("lockstep run", command, ranks, flags.timeout)[-1]["ddp_seconds"]
    return seconds


def mnist(flags):
    is_example = not any((bench.BUILD / "bin" / name).exists() for name in ("benchmark", "mnist"))
    command = [*([bench.program(OLDER_NAMES["mnist"]), "--json"] if is_example else bench.benchmark("mnist")),
               "--data-dir", str(flags.data_dir), "--epochs", "2", "--max-steps", str(flags.steps), "--batch-size",
               str(flags.batch_size)]
    epochs = [each for each in bench.launch("lockstep run", command, 2, flags.timeout) if "samples_per_second" in each]
    return {"mnist, ranks: 2": 1 / epochs[-1]["samples_per_second"]}


def startup(flags):
    command = [bench.program("lockstep"), "run", "--nproc-per-node", "2", bench.program("01_hello_allreduce")]
    return {"startup": min(bench.wall_seconds(command, flags.timeout) for _ in range(3))}


PARTS = {"small": lambda flags: collectives(flags, "1K"), "comm": lambda flags: collectives(flags, "64K,1M,25M"), "ddp": ddp,
         "mnist": mnist, "startup": startup}


def in_build(build, part, flags):
    bench.BUILD = build
    return PARTS[part](flags)


def interval(ratios):
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(2000))
    return medians[49], medians[-50]


def compare(flags, part):
    bench.progress(f"part {part}")
    sides = {name: lambda build=build: in_build(build, part, flags)
             for name, build in (("other", flags.other.resolve()), ("this", flags.this))}
    rounds = bench.interleave(sides, flags.rounds)
    rows = {}
    for row in rounds["other"][0]:
        ratios = [new[row] / old[row] for new, old in zip(rounds["this"], rounds["other"])]
        rows[row] = {"ratio": statistics.median(ratios), "interval": interval(ratios)}
    return rows


def main():
    parser = bench.parser(__doc__, rounds=10)
    parser.add_argument("--other", type=pathlib.Path, required=True, help="build directory of the other build")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    mnist_runs.add_options(parser, steps=40)
    flags = parser.parse_args()
    flags.this = bench.BUILD
    mnist_runs.download(flags)
    rows = {row: result for part in flags.parts for row, result in compare(flags, part).items()}
    if flags.json:
        print(json.dumps(rows))
        return
    print(f"{'':40}{'this/other':>12}   95% interval (goal: ends below 1.03)")
    for row, result in rows.items():
        low, high = result["interval"]
        print(f"{row:40}{result['ratio']:12.3f}   {low:.3f} to {high:.3f}{'' if high < 1.03 else '  missed'}")


if __name__ == "__main__":
    main()
