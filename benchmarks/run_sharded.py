#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Training steps with AdamW on several ranks: DistributedDataParallel, ZeroRedundancyOptimizer and fully_shard() with shared and
gathered parameters. Times of two ranks beside PyTorch's fully_shard over Gloo, in alternating slices; the memory of 2 and 4
ranks beside the goals; and what it costs that operators find their parameters, on one rank."""
import os
import statistics

import bench_support as bench

STEPS = {"mlp": 8, "gpt": 30}
# A step is also timed in mode "plain": ranks that train alone, without communication.
MODES = ["ddp", "zero1", "zero1-shared", "shared", "gathered"]
NETS = {"mlp": "large MLP", "gpt": "GPT"}
FORMS = {"plain": "no communication", "ddp": "DDP", "zero1": "ZeroRedundancyOptimizer",
         "zero1-shared": "ZeroRedundancyOptimizer, share_parameters()", "shared": "fully_shard, shared", "gathered": "fully_shard, gathered",
         "gathered, gloo": "fully_shard, gathered, gloo", "PyTorch": "PyTorch's fully_shard, gloo"}
MEMORY_NET = "mlp"
# Bytes a parameter of a host with 2 ranks: parameters, gradients and two states of AdamW in float32. `shared` has one group's
# gradients a rank in addition, which for this net is a fourth of all. Idle memory that the allocator keeps
# is in a column of its own.
MEMORY_GOALS = {"ddp": 32, "zero1-shared": 20, "shared": 16 + 2 * 4 / 4}
TOLERANCE = 1.05
MOST_GROWTH = 1.25  # of shared memory from 2 ranks to 4


def sharded_step(net, mode, *arguments):
    return [*bench.benchmark("sharded_step"), "--net", net, "--mode", mode, *arguments]


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
    return bench.interleave(sides, flags.rounds)


def step_rows(net, sides):
    steps = {side: bench.of_rounds(rounds, "seconds", 1e3) for side, rounds in sides.items()}
    return [[NETS[net], FORMS[side], step, bench.ratio(step, steps["ddp"]), bench.ratio(step, steps["PyTorch"]),
             bench.of_rounds(sides[side], "bytes_per_parameter")] for side, step in steps.items()]


def measure_trap(flags):
    """One rank, whose parameters are shared with nobody, beside a module that is not sharded."""
    runs = [run(flags, "gpt", "trap", "--backend", "shm", ranks=1) for _ in range(max(flags.rounds, 5))]
    return {key: statistics.median(each[key] for each in runs) for key in ("microseconds", "forward", "step")}


def trap_rows(trap):
    return [["an operator on a sharded parameter", f"{trap['microseconds']:.2f} us more", "3 us"],
            ["a forward of the GPT, without gradients", f"{trap['forward']:.1%} more", "2 %"],
            ["forward and backward of the GPT, without reductions", f"{trap['step']:.1%} more", "2 %"]]


def measure_memory(flags, ranks, mode):
    """Memory needs no core for each rank."""
    bench.progress(f"memory of {ranks} ranks: {mode}")
    command = [bench.program("lockstep"), "run", "--nproc-per-node", str(ranks), *sharded_step(MEMORY_NET, mode, "--steps", "2")]
    return bench.objects(bench.finished(command, flags.timeout, os.environ | {"OMP_NUM_THREADS": "1"}))[-1]


def memory_rows(memory):
    for mode in MODES:
        two, four = memory["2"][mode], memory["4"][mode]
        yield [FORMS[mode], two["bytes_per_parameter"], two["bytes_with_cache"], four["bytes_per_parameter"], four["bytes_with_cache"],
               four["megabytes"] / two["megabytes"], MEMORY_GOALS.get(mode)]


def main():
    parser = bench.recording_parser(__doc__, rounds=3)
    parser.add_argument("--nets", nargs="*", choices=STEPS, default=list(STEPS), help="whose steps are timed; none: no steps")
    flags = parser.parse_args()
    memory = {str(ranks): {mode: measure_memory(flags, ranks, mode) for mode in MODES} for ranks in (2, 4)}
    trap = measure_trap(flags)
    steps = {net: measure_steps(flags, net) for net in flags.nets}
    growth = memory["4"]["shared"]["megabytes"] / memory["2"]["shared"]["megabytes"]
    tables = {"sharded_memory": [bench.table(f"Bytes per parameter of the {NETS[MEMORY_NET]}, all ranks, over shm",
                                             ["form", "2 ranks", "2 ranks with cache", "4 ranks", "4 ranks with cache", "4 ranks / 2",
                                              "goal, 2 ranks"], memory_rows(memory))],
              "sharded": [bench.table("Milliseconds per step, two ranks, AdamW (fused), float32",
                                      ["net", "form", "step", "/ DDP", "/ PyTorch's fully_shard", "bytes per parameter"],
                                      [row for net, sides in steps.items() for row in step_rows(net, sides)]),
                          bench.table("fully_shard() on one rank, beside ordinary parameters", ["case", "measured", "goal, at most"],
                                      trap_rows(trap))]}
    if not steps:
        del tables["sharded"][0]
    bench.report(flags, {"memory": memory, "trap": trap, "steps": steps}, tables, [
        f"Memory: goals within {TOLERANCE - 1:.0%}; shared, 4 ranks / 2: {bench.goal(growth, MOST_GROWTH)}",
        "Steps: shared and zero1-shared at most 0.9 of DDP; at most 0.35 (mlp) and 0.7 (gpt) of PyTorch's fully_shard."])


if __name__ == "__main__":
    main()
