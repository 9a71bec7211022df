#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Training steps of several nets: the overhead of DistributedDataParallel on one rank, its step on two ranks beside
PyTorch's over Gloo, and its memory beside that of the bare net; in alternating slices."""

import bench_support as bench

STEPS = {"resnet18": 20, "gpt": 40, "chain": 300, "mlp": 8}


def run(flags, ranks, net, *arguments, steps=None):
    command = [*bench.benchmark("ddp_step"), "--net", net, "--steps", str(steps or STEPS[net]), *arguments]
    return bench.launch("lockstep run", command, ranks, flags.timeout)[-1]


def run_pytorch(flags, net):
    command = [*bench.twin("ddp_step"), "--net", net, "--mode", "ddp", "--steps", str(STEPS[net])]
    return bench.launch("torchrun", command, 2, flags.timeout)[-1]


def measure(flags, net):
    sides = {"ours": lambda: run(flags, 2, net, "--mode", "ddp"),
             "gloo": lambda: run(flags, 2, net, "--mode", "ddp", "--backend", "gloo"),
             "pytorch": lambda: run_pytorch(flags, net)}
    if net != "mlp":
        sides["one rank"] = lambda: run(flags, 1, net)
    bench.progress(f"net {net}")
    rounds = bench.interleave(sides, flags.rounds)
    bench.progress(f"memory of {net}")
    # Two processes for the bare net too, since two processes share the memory of the libraries.
    modes = {"bare": ["--mode", "bare"], "ddp": ["--mode", "ddp"],
             "optimizer in backward": ["--mode", "ddp", "--optimizer-in-backward"]}
    megabytes = {name: run(flags, 2, net, *mode, steps=3)["peak_megabytes"] for name, mode in modes.items()}
    overheads = [one["ddp_seconds"] / one["bare_seconds"] for one in rounds.get("one rank", [])]
    return {"overhead": overheads or None,
            "ms": {side: bench.of_rounds(rounds[side], "ddp_seconds", 1e3) for side in ("ours", "gloo", "pytorch")},
            "exposed_ms": bench.of_rounds(rounds["ours"], "exposed_ms"),
            "megabytes": megabytes,
            "losses_equal": len({each["loss"] for each in rounds["gloo"] + rounds["pytorch"]}) == 1}


def main():
    parser = bench.recording_parser(__doc__, rounds=3)
    parser.add_argument("--nets", nargs="+", choices=STEPS, default=list(STEPS))
    flags = parser.parse_args()
    results = {net: measure(flags, net) for net in flags.nets}
    watch = bench.launch("lockstep run", [*bench.benchmark("ddp_overhead"), "--watch"], 1, flags.timeout)[-1]
    rows = [[net, each["ms"]["pytorch"], each["ms"]["ours"], bench.ratio(each["ms"]["pytorch"], each["ms"]["ours"]), each["ms"]["gloo"],
             each["exposed_ms"], each["overhead"]] for net, each in results.items()]
    steps = bench.table("Milliseconds per step of two ranks", ["net", "PyTorch's DDP over Gloo", "Lockstep", "times as fast", "Lockstep over Gloo",
                                                               "exposed reduction", "DDP / bare, one rank"], rows)
    memory = bench.table("Peak memory, MB", ["net", "bare", "DDP", "optimizer in backward"],
                         [[net, *map(round, each["megabytes"].values())] for net, each in results.items()])
    different = [net for net, each in results.items() if not each["losses_equal"]]
    bench.report(flags, {**results, "watch": watch}, {"ddp": [steps, memory]}, [
        f"Losses over Gloo differ for: {', '.join(different) or 'none'}",
        f"A forward compares a module of {watch['parameters']} parameters with what it was: {watch['microseconds_after_zero_grad']:.1f} us after "
        f"zero_grad(), {watch['microseconds_after_step']:.1f} us right after the optimizer's step (goal 10)",
        "Goals: 1 rank at most 1.01 of the bare step; 2 ranks not slower than PyTorch, 1.3 times as fast where communication dominates; memory "
        "at most 10% above the bare net's."])


if __name__ == "__main__":
    main()
