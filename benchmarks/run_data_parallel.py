#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""A training step on two cores of one host: DataParallel with two replicas on the CPU beside Python threads that run the same
replicas, the module alone with two threads in each operator, and DistributedDataParallel with two ranks that are threads or
processes; all in turns."""
import argparse
import json
import os
import statistics

import bench_support as bench

STEPS = {"resnet18": 15, "gpt": 30, "chain": 200, "mlp": 6}


def run_here(command, timeout):
    """One process on two cores."""
    cores = ",".join(map(str, bench.cores(2)))
    output = bench.finished(["taskset", "-c", cores, *command], timeout, os.environ | {"OMP_NUM_THREADS": "2"})
    return json.loads(next(line for line in output.splitlines() if line.startswith("{")))


def measure(flags, net):
    arguments = ["--net", net, "--steps", str(STEPS[net])]
    columns = {}
    for _ in range(flags.rounds):
        ours = run_here([bench.program("data_parallel"), *arguments], flags.timeout)
        python = run_here([bench.PYTHON, str(bench.ROOT / "benchmarks/pytorch/data_parallel.py"), *arguments], flags.timeout)
        output = bench.launch("lockstep run", [bench.program("ddp_step"), "--mode", "ddp", *arguments], 2, flags.timeout)
        processes = json.loads(output[output.index("{"):output.rindex("}") + 1])
        for name, seconds in {"module": ours["module_seconds"], "replicas": ours["replicas_seconds"],
                              "Python module": python["module_seconds"], "Python replicas": python["replicas_seconds"],
                              "thread ranks": ours["ranks_seconds"], "process ranks": processes["ddp_seconds"]}.items():
            columns.setdefault(name, []).append(seconds)
    return {name: statistics.median(values) for name, values in columns.items()}


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
    names = list(next(iter(results.values())))
    print(f"{'ms a step':12}" + "".join(f"{name:>17}" for name in names) + f"{'faster':>9}")
    for net, seconds in results.items():
        faster = seconds["Python replicas"] / seconds["replicas"]
        print(f"{net:12}" + "".join(f"{seconds[name] * 1e3:>17.1f}" for name in names) + f"{faster:>8.2f}x")
    print("\nGoal: DataParallel's replicas faster than Python's.")


if __name__ == "__main__":
    main()
