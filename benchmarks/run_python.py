#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Python's DistributedDataParallel with the package lockstep_torch: its steps over shm beside those over gloo, in turn in
the same ranks, with gradient_as_bucket_view and with the caching CPU allocator for both; and the reduction alone, beside that of
C++."""
import json
import os
import statistics

import bench_support as bench

STEPS = {"mnist": 40, "resnet18": 20, "gpt": 30, "mlp": 8, "none": 30, "callbacks": 1000}
NETS = ["mnist", "resnet18", "gpt", "mlp"]
GOALS = {"mnist": 1.0, "resnet18": 1.0, "gpt": 1.3, "mlp": 1.7}
OPTIONS = [(), ("view",), ("view", "caching")]
BUCKET_BYTES = 25 * 1024 * 1024


def step(net, options):
    return [*bench.twin("backends_step"), "--net", net, "--steps", str(STEPS[net]), *(f"--{option}" for option in options)]


def run(flags, net, options=()):
    return bench.launch("lockstep run", step(net, options), flags.ranks, flags.timeout)[-1]


def are_equal(rounds, ranks):
    """At two ranks every order of a sum gives the same bits."""
    limit = 0 if ranks == 2 else 1e-5
    return all(abs(shm - gloo) <= limit * abs(gloo) for each in rounds
               for shm, gloo in zip(each["losses"]["shm"], each["losses"]["gloo"]))


def summary(rounds, ranks):
    seconds = {name: statistics.median(each["seconds"][name] for each in rounds) for name in rounds[0]["seconds"]}
    return {"seconds": seconds, "faster": seconds["gloo"] / seconds["shm"], "losses_equal": are_equal(rounds, ranks)}


def in_cpp(flags):
    command = [bench.program("lockstep"), "bench", "all-reduce", "--nproc", str(flags.ranks), "--sizes", str(BUCKET_BYTES),
               "--backend", "shm,gloo", "--json"]
    rows = json.loads(bench.finished(command, flags.timeout, os.environ | {"LOCKSTEP_LOG_LEVEL": "error"}, stderr=None))
    return {name: min(row["microseconds"] for row in rows if row["backend"] == name) for name in ("shm", "gloo")}


def compare_losses(flags):
    """The largest relative difference of a loss over shm from that over gloo. Ranks may share cores."""
    for net in flags.nets:
        for options in ((), ("view",)):
            command = [bench.program("lockstep"), "run", "--nproc-per-node", str(flags.ranks), *step(net, options)]
            losses = bench.objects(bench.finished(command, flags.timeout, os.environ | {"OMP_NUM_THREADS": "1"}))[-1]["losses"]
            worst = max(abs(shm - gloo) / abs(gloo) for shm, gloo in zip(losses["shm"], losses["gloo"]))
            print(f"{', '.join((net, *options)):24}{len(losses['shm']):>4} steps{worst:>12.1e}", flush=True)


def main():
    parser = bench.recording_parser(__doc__, rounds=2)
    parser.add_argument("--nets", nargs="+", choices=NETS, default=NETS)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--losses", action="store_true", help="compare the losses and measure nothing")
    flags = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(bench.BUILD / "python"), os.environ.get("PYTHONPATH")]))
    if flags.losses:
        compare_losses(flags)
        return
    sides = {(net, *options): (lambda net=net, options=options: run(flags, net, options))
             for net in flags.nets for options in OPTIONS}
    sides["none",] = lambda: run(flags, "none")
    sides["callbacks",] = lambda: run(flags, "callbacks")["seconds"]
    sides["C++",] = lambda: in_cpp(flags)
    rounds = bench.interleave(sides, flags.rounds)
    cpp = [each["gloo"] / each["shm"] for each in rounds.pop(("C++",))]
    callback = statistics.median(each["callback"] - each["direct"] for each in rounds.pop(("callbacks",)))
    reduction = summary(rounds.pop(("none",)), flags.ranks)
    reduction["of_cpp"] = reduction["faster"] / statistics.median(cpp)
    nets = {", ".join(side): summary(each, flags.ranks) | {"goal": GOALS[side[0]]} for side, each in rounds.items()}
    rows = []
    for side, runs in rounds.items():
        seconds = [each["seconds"] for each in runs]
        shm, gloo, unreduced = (bench.of_rounds(seconds, backend, 1e3) for backend in ("shm", "gloo", "unreduced"))
        rows.append([", ".join(side), shm, gloo, unreduced, bench.ratio(gloo, shm), GOALS[side[0]], bench.ratio(gloo, unreduced)])
    steps = bench.table(f"Milliseconds per step of Python's DistributedDataParallel, {flags.ranks} ranks",
                        ["net", "shm", "gloo", "unreduced", "gloo / shm", "goal", "at most"], rows)
    calls = bench.table("25 MiB alone, and a callback", ["figure", "measured", "goal"],
                        [["25 MiB alone, times as fast over shm as over gloo", reduction["faster"], None],
                         ["the same, of the ratio in C++", reduction["of_cpp"], 0.8], ["a callback, us more", callback * 1e6, 20]])
    different = [name for name, each in nets.items() if not each["losses_equal"]]
    bench.report(flags, {"nets": nets, "reduction": reduction, "callback": callback}, {"python": [steps], "python_calls": [calls]},
                 [f"Losses over shm and gloo differ for: {', '.join(different) or 'none'}"])


if __name__ == "__main__":
    main()
