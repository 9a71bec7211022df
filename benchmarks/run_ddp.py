#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Training steps of several nets: what DistributedDataParallel adds on one rank, its step at two ranks beside PyTorch's over
Gloo, and its memory beside that of the bare net; all in turns."""
import argparse
import json
import statistics

import bench_support as bench

STEPS = {"resnet18": 20, "gpt": 40, "chain": 300, "mlp": 8}


def result_of(output):
    line = next(line for line in output.splitlines() if line.endswith("}"))
    return json.loads(line[line.index("{"):])


def run(flags, ranks, net, *arguments):
    command = [bench.program("ddp_step"), "--net", net, *arguments]
    return result_of(bench.launch("lockstep run", command, ranks, flags.timeout))


def run_pytorch(flags, net):
    script = bench.ROOT / "benchmarks/pytorch/ddp_step.py"
    command = [bench.PYTHON, str(script), "--net", net, "--mode", "ddp", "--steps", str(STEPS[net])]
    return result_of(bench.launch("torchrun", command, 2, flags.timeout))


def measure(flags, net):
    steps = ["--steps", str(STEPS[net])]
    rounds = {"overhead": [], "ours": [], "gloo": [], "pytorch": []}
    for _ in range(flags.rounds):
        if net != "mlp":
            one = run(flags, 1, net, *steps)
            rounds["overhead"].append(one["ddp_seconds"] / one["bare_seconds"])
        rounds["ours"].append(run(flags, 2, net, "--mode", "ddp", *steps))
        rounds["gloo"].append(run(flags, 2, net, "--mode", "ddp", "--backend", "gloo", *steps))
        rounds["pytorch"].append(run_pytorch(flags, net))
    # Two bare processes, since two processes share the memory of the libraries.
    bare = run(flags, 2, net, "--mode", "bare", "--steps", "3")["peak_megabytes"]
    ddp = run(flags, 2, net, "--mode", "ddp", "--steps", "3")["peak_megabytes"]
    lean = run(flags, 2, net, "--mode", "ddp", "--optimizer-in-backward", "--steps", "3")["peak_megabytes"]

    def seconds(side):
        return statistics.median(each["ddp_seconds"] for each in rounds[side])

    return {"overhead": statistics.median(rounds["overhead"]) if rounds["overhead"] else None,
            "seconds": {side: seconds(side) for side in ("ours", "gloo", "pytorch")},
            "exposed_ms": statistics.median(each["exposed_ms"] for each in rounds["ours"]),
            "megabytes": {"bare": bare, "ddp": ddp, "optimizer in backward": lean},
            "losses_equal": len({each["loss"] for each in rounds["gloo"] + rounds["pytorch"]}) == 1}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--nets", nargs="+", choices=STEPS, default=list(STEPS))
    parser.add_argument("--timeout", type=int, default=600, help="seconds that one run may take")
    parser.add_argument("--json", action="store_true")
    flags = parser.parse_args()
    results = {net: measure(flags, net) for net in flags.nets}
    if flags.json:
        print(json.dumps(results))
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
    print("\nGoals: 1 rank at most 1.01 of the bare step; 2 ranks not slower than PyTorch, 1.3 times as fast where "
          "communication rules; memory at most 10% above the bare net's.")


if __name__ == "__main__":
    main()
