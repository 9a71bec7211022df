#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Training steps with AdamW on several ranks: DistributedDataParallel, ZeroRedundancyOptimizer and fully_shard() with shared and
gathered parameters. Times of two ranks beside PyTorch's fully_shard over Gloo, in alternating slices; the memory of 2 and 4
ranks beside the goals; and what it costs that operators find their parameters, on one rank."""
import json
import os
import statistics

import bench_support as bench

STEPS = {"mlp": 8, "gpt": 30}
# A step is also timed in mode "plain": ranks that train alone, without communication.
MODES = ["ddp", "zero1", "zero1-shared", "shared", "gathered"]
MEMORY_NET = "mlp"
# Bytes a parameter of a host with 2 ranks: parameters, gradients and two states of AdamW in float32. `shared` has one group's
# gradients a rank in addition, which for this net is a fourth of all. Idle memory that the allocator keeps
# is in a column of its own.
MEMORY_GOALS = {"ddp": 32, "zero1-shared": 20, "shared": 16 + 2 * 4 / 4}
TOLERANCE = 1.05
MOST_GROWTH = 1.25  # of shared memory from 2 ranks to 4


def sharded_step(net, mode, *arguments):
    return [bench.program("sharded_step"), "--net", net, "--mode", mode, *arguments]


def run(flags, net, mode, *arguments, ranks=2):
    command = sharded_step(net, mode, "--steps", str(STEPS[net]), *arguments)
    return bench.launch("lockstep run", command, ranks, flags.timeout)[-1]


def run_pytorch(flags, net):
    command = [*bench.twin("sharded_step"), "--net", net, "--steps", str(STEPS[net])]
    return bench.launch("torchrun", command, 2, flags.timeout)[-1]


def measure_steps(flags, net):
    sides = {mode: lambda mode=mode: run(flags, net, mode) for mode in ("plain", *MODES)}
    sides["gathered, gloo"] = lambda: run(flags, net, "gathered", "--backend", "gloo")
    sides["PyTorch"] = lambda: run_pytorch(flags, net)
    bench.progress(f"net {net}")
    rounds = bench.interleave(sides, flags.rounds)
    return {side: {key: statistics.median(each[key] for each in results)
                   for key in ("seconds", "megabytes", "bytes_per_parameter", "loss")} for side, results in rounds.items()}


def print_steps(net, sides):
    print(f"{net + ', 2 ranks':16}{'step':>12}{'of DDP':>8}{'of PyTorch':>12}{'memory':>10}{'bytes a parameter':>19}")
    for side, each in sides.items():
        print(f"{side:16}{each['seconds'] * 1e3:>9.1f} ms{each['seconds'] / sides['ddp']['seconds']:>8.2f}"
              f"{each['seconds'] / sides['PyTorch']['seconds']:>12.2f}{each['megabytes']:>7.0f} MB"
              f"{each['bytes_per_parameter']:>19.1f}")


def measure_trap(flags):
    """One rank, whose parameters are shared with nobody, beside a module that is not sharded."""
    runs = [run(flags, "gpt", "trap", "--backend", "shm", ranks=1) for _ in range(max(flags.rounds, 5))]
    return {key: statistics.median(each[key] for each in runs) for key in ("microseconds", "forward", "step")}


def print_trap(trap):
    print(f"an operator on a sharded parameter: {trap['microseconds']:.2f} us more (goal 3); on one rank, a forward of the GPT: "
          f"{trap['forward']:.1%} more, forward and backward: {trap['step']:.1%} more (goal 2%)")


def measure_memory(flags, ranks, mode):
    """Memory needs no core for each rank."""
    bench.progress(f"memory of {ranks} ranks: {mode}")
    command = [bench.program("lockstep"), "run", "--nproc-per-node", str(ranks), *sharded_step(MEMORY_NET, mode, "--steps", "2")]
    return bench.objects(bench.finished(command, flags.timeout, os.environ | {"OMP_NUM_THREADS": "1"}))[-1]


def verdict(value, limit):
    return f"{limit:.1f}, {'met' if value <= limit * TOLERANCE else 'missed'}"


def print_memory(memory):
    parameters = memory["2"]["ddp"]["parameters"]
    print(f"memory of a host by PSS, {MEMORY_NET}, {parameters / 1e6:.1f} million parameters")
    print(f"{'':16}{'2 ranks':>10}{'4 ranks':>10}{'bytes a parameter, 2':>22}{'4':>7}{'4 / 2':>7}{'with cache, 2':>15}"
          "  goal at 2 ranks")
    for mode in MODES:
        two, four = memory["2"][mode], memory["4"][mode]
        goal = verdict(two["bytes_per_parameter"], MEMORY_GOALS[mode]) if mode in MEMORY_GOALS else "-"
        print(f"{mode:16}{two['megabytes']:>7.0f} MB{four['megabytes']:>7.0f} MB{two['bytes_per_parameter']:>22.1f}"
              f"{four['bytes_per_parameter']:>7.1f}{four['megabytes'] / two['megabytes']:>7.2f}"
              f"{two['bytes_with_cache']:>15.1f}  {goal}")
    growth = memory["4"]["shared"]["megabytes"] / memory["2"]["shared"]["megabytes"]
    print(f"shared, 4 ranks of 2: {bench.goal(growth, MOST_GROWTH)}")


def main():
    parser = bench.parser(__doc__, rounds=3)
    parser.add_argument("--nets", nargs="*", choices=STEPS, default=list(STEPS), help="whose steps are timed; none: no steps")
    flags = parser.parse_args()
    memory = {str(ranks): {mode: measure_memory(flags, ranks, mode) for mode in MODES} for ranks in (2, 4)}
    trap = measure_trap(flags)
    steps = {net: measure_steps(flags, net) for net in flags.nets}
    if flags.json:
        print(json.dumps({"memory": memory, "trap": trap, "steps": steps}))
        return
    print_memory(memory)
    print_trap(trap)
    for net, sides in steps.items():
        print_steps(net, sides)
    if steps:
        print("\nGoals: shared and zero1-shared at most 0.9 of DDP; of PyTorch's fully_shard at most 0.35 (mlp) and 0.7 (gpt).")


if __name__ == "__main__":
    main()
