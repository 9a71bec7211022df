#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Training steps of several nets: the overhead of DistributedDataParallel on one rank, its step on two ranks beside
PyTorch's over Gloo, and its memory beside that of the bare net; in alternating slices."""
import json
import statistics

import bench_support as bench

STEPS = {"resnet18": 20, "gpt": 40, "chain": 300, "mlp": 8}


def run(flags, ranks, net, *arguments, steps=None):
    command = [bench.program("ddp_step"), "--net", net, "--steps", str(steps or STEPS[net]), *arguments]
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
    return {"overhead": statistics.median(overheads) if overheads else None,
            "seconds": {side: statistics.median(each["ddp_seconds"] for each in rounds[side])
                        for side in ("ours", "gloo", "pytorch")},
            "exposed_ms": statistics.median(each["exposed_ms"] for each in rounds["ours"]),
            "megabytes": megabytes,
            "losses_equal": len({each["loss"] for each in rounds["gloo"] + rounds["pytorch"]}) == 1}


def main():
    parser = bench.parser(__doc__, rounds=3)
    parser.add_argument("--nets", nargs="+", choices=STEPS, default=list(STEPS))
    flags = parser.parse_args()
    results = {net: measure(flags, net) for net in flags.nets}
    watch = bench.launch("lockstep run", [bench.program("ddp_overhead"), "--watch"], 1, flags.timeout)[-1]
    if flags.json:
        print(json.dumps({**results, "watch": watch}))
        return
    print(f"{'':10}{'1 rank':>8}{'2 ranks: Lockstep':>19}{'on gloo':>10}{'PyTorch':>10}{'faster':>8}"
          f"{'exposed':>9}   peak MB bare / DDP / optimizer in backward")
    for net, each in results.items():
        overhead = f"{each['overhead']:.3f}" if each["overhead"] else "-"
        milliseconds = {side: f"{value * 1e3:.1f}" for side, value in each["seconds"].items()}
        faster = each["seconds"]["pytorch"] / each["seconds"]["ours"]
        memory = each["megabytes"]
        print(f"{net:10}{overhead:>8}{milliseconds['ours']:>16} ms{milliseconds['gloo']:>10}{milliseconds['pytorch']:>10}"
              f"{faster:>7.2f}x{each['exposed_ms']:>6.1f} ms   {memory['bare']:.0f} / {memory['ddp']:.0f} "
              f"({memory['ddp'] / memory['bare'] - 1:+.1%}) / {memory['optimizer in backward']:.0f}"
              f"{'' if each['losses_equal'] else '   losses over Gloo differ!'}")
    print(f"\nA forward compares a module of {watch['parameters']} parameters with what it was: "
          f"{watch['microseconds_after_zero_grad']:.1f} us after zero_grad(), {watch['microseconds_after_step']:.1f} us right "
          "after the optimizer's step (goal 10)")
    print("\nGoals: 1 rank at most 1.01 of the bare step; 2 ranks not slower than PyTorch, 1.3 times as fast where "
          "communication dominates; memory at most 10% above the bare net's.")


if __name__ == "__main__":
    main()
