#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""All-reduce over the backend mpi beside MPI_Allreduce and MPI_Iallreduce, in alternating slices of the same processes; and
the step of DistributedDataParallel over mpi beside gloo. Two ranks under mpirun."""
import json
import os
import statistics

import bench_support as bench

NETS = ("resnet18", "gpt")


def parse_flags():
    options = bench.parser(__doc__, rounds=5)
    options.add_argument("--steps", type=int, default=20, help="timed steps of each net")
    return options.parse_args()


def mpirun(timeout, name, *arguments):
    """What a program prints under mpirun. It binds its ranks itself, or needs no binding."""
    command = ["mpirun", "--allow-run-as-root", "-n", "2", "--bind-to", "none", bench.program(name), *arguments]
    env = {"LOCKSTEP_LOG_LEVEL": "error", "OMP_NUM_THREADS": "1"}
    return bench.finished(command, timeout, os.environ | env, stderr=None)


def all_reduces(timeout):
    """{(form, bytes): {side: microseconds}}"""
    return {(row["form"], row["bytes"]): {side: row[f"{side}_microseconds"] for side in ("mpi", "lockstep")}
            for row in bench.objects(mpirun(timeout, "mpi_all_reduce"))}


def steps(flags, backend, net):
    """The slower rank's seconds of a step, and the share of it in which the rank waits for communication."""
    output = mpirun(flags.timeout, "ddp_step", "--net", net, "--backend", backend, "--mode", "ddp", "--steps", str(flags.steps))
    slowest = max(bench.objects(output), key=lambda rank: rank["ddp_seconds"])
    return {"seconds": slowest["ddp_seconds"], "exposed": slowest["exposed_ms"] / 1000 / slowest["ddp_seconds"]}


def medians(results):
    return {name: {key: statistics.median(one[key] for one in all_rounds) for key in all_rounds[0]}
            for name, all_rounds in results.items()}


def table(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    print("\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines) + "\n")


def main():
    flags = parse_flags()
    rounds = [all_reduces(flags.timeout) for _ in range(flags.rounds)]
    calls = medians({key: [one[key] for one in rounds] for key in rounds[0]})
    training = medians(bench.interleave({f"{net} {backend}": lambda net=net, backend=backend: steps(flags, backend, net)
                                         for net in NETS for backend in ("gloo", "mpi")}, flags.rounds))
    if flags.json:
        rows = [{"form": form, "bytes": size, **times} for (form, size), times in calls.items()]
        print(json.dumps({"all_reduce": rows, "ddp": training}))
        return
    table(["all-reduce", "bytes", "MPI, us", "backend mpi, us", "difference, us", "ratio"],
          [[form, size, f"{plain:.2f}", f"{ours:.2f}", f"{ours - plain:.2f}", f"{ours / plain:.2f}"]
           for (form, size), (plain, ours) in ((key, tuple(times.values())) for key, times in calls.items())])
    table(["net", "gloo: ms a step", "mpi: ms a step", "gloo: share exposed", "mpi: share exposed"],
          [[net, *(f"{training[f'{net} {backend}']['seconds'] * 1000:.1f}" for backend in ("gloo", "mpi")),
            *(f"{training[f'{net} {backend}']['exposed']:.2f}" for backend in ("gloo", "mpi"))] for net in NETS])


if __name__ == "__main__":
    main()
