#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Steps of pipelines of two ranks over shm and Gloo beside PyTorch's over Gloo, in alternating slices; the share of a step in which
a rank computes nothing, beside what simulate() says for the measured times of the actions."""
import bench_support as bench

# Schedule and stages on each rank.
SCHEDULES = [("GPipe", 1), ("1F1B", 1), ("Interleaved1F1B", 2), ("InterleavedZeroBubble", 1), ("ZBVZeroBubble", 2)]
RANKS = [2, 4, 8, 16, 32, 64]


def arguments(flags, net, schedule, stages):
    return ["--net", net, "--schedule", schedule, "--stages", str(stages), "--microbatches", str(flags.microbatches),
            "--steps", str(flags.steps)]


def measure(flags, net):
    sides = {}
    for schedule, stages in SCHEDULES:
        options = arguments(flags, net, schedule, stages)
        ours = [*bench.benchmark("pipeline_step"), *options]
        for backend in ("shm", "gloo"):
            sides[schedule, backend] = lambda command=[*ours, "--backend", backend]: bench.launch(
                "lockstep run", command, 2, flags.timeout)[-1]
        sides[schedule, "PyTorch"] = lambda command=[*bench.twin("pipeline_step"), *options]: bench.launch(
            "torchrun", command, 2, flags.timeout)[-1]
    bench.progress(f"net {net}")
    return bench.interleave(sides, flags.rounds)


def row(net, schedule, sides):
    shm, gloo, torch = (sides[schedule, side] for side in ("shm", "gloo", "PyTorch"))
    steps = [bench.of_rounds(each, "seconds", 1e3) for each in (shm, gloo, torch)]
    idle = [bench.of_rounds(shm, key, 100) for key in ("idle", "simulated_idle")]
    return [net, schedule, *steps, bench.ratio(steps[2], steps[0]), *idle,
            bench.ratio(bench.of_rounds(shm, "simulated_seconds"), bench.of_rounds(shm, "pipeline_seconds"))]


def main():
    parser = bench.recording_parser(__doc__, rounds=3)
    parser.add_argument("--nets", nargs="+", choices=["mlp", "gpt"], default=["mlp", "gpt"])
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--steps", type=int, default=15)
    flags = parser.parse_args()
    results = {net: measure(flags, net) for net in flags.nets}
    names = {"mlp": "MLP", "gpt": "GPT"}
    steps = bench.table(f"Milliseconds per step, two ranks, {flags.microbatches} micro-batches",
                        ["net", "schedule", "shm", "Gloo", "PyTorch, Gloo", "PyTorch / shm", "idle, %", "simulated idle, %",
                         "simulated / measured step"],
                        [row(names[net], schedule, sides) for net, sides in results.items() for schedule, _ in SCHEDULES])
    more = bench.table("Idle time as simulated for more ranks, percent; equal stages, four micro-batches a rank, messages that cost nothing",
                       ["net", "schedule", "2 ranks", *map(str, RANKS[1:])],
                       [[names[net], schedule, *(bench.of_rounds(sides[schedule, "shm"], f"idle_{ranks}", 100) for ranks in RANKS)]
                        for net, sides in results.items() for schedule, _ in SCHEDULES])
    bench.report(flags, {net: {" ".join(side): each for side, each in sides.items()} for net, sides in results.items()},
                 {"pipeline": [steps], "pipeline_ranks": [more]},
                 ["Goals: idle within 3 points of the simulation, a simulated step within 10 % of the measured one; gpt at least 1.5 times as "
                  "fast as PyTorch's."])


if __name__ == "__main__":
    main()
