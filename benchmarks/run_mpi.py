#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""All-reduce over the backend mpi beside a plain MPI_Allreduce, both with MPI_THREAD_MULTIPLE, in alternating slices; and the
step of DistributedDataParallel over mpi beside gloo. Two ranks under mpirun."""
import json
import os
import statistics

import bench_support as bench

KB = 1024
SIZES = (KB, 64 * KB, KB * KB, 25 * KB * KB)
NETS = ("resnet18", "gpt")


def parse_flags():
    options = bench.parser(__doc__, rounds=5)
    options.add_argument("--steps", type=int, default=20, help="timed steps of each net")
    return options.parse_args()


def mpirun(timeout, name, *arguments):
    """What a program prints under mpirun. It binds its ranks itself, or needs no binding."""
    command = ["mpirun", "--allow-run-as-root", "-n", "2", "--bind-to", "none", bench.program(name), *arguments]
    env = {"LOCKSTEP_MPI_THREADS": "multiple", "LOCKSTEP_LOG_LEVEL": "error", "OMP_NUM_THREADS": "1"}
    return bench.finished(command, timeout, os.environ | env, stderr=None)


def all_reduces(timeout, name, *arguments):
    """{bytes: microseconds} of the tensors or buffers that are reduced in place."""
    sizes = ",".join(map(str, SIZES))
    rows = json.loads(mpirun(timeout, name, "all-reduce", "--sizes", sizes, "--json", *arguments))
    if any(row["wrong"] for row in rows):
        raise SystemExit(f"{name}: wrong values")
    return {row["bytes"]: row["microseconds"] for row in rows if row["memory"] == "ordinary"}


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
    calls = medians(bench.interleave({"MPI_Allreduce": lambda: all_reduces(flags.timeout, "mpi_collectives"),
                                      "mpi": lambda: all_reduces(flags.timeout, "lockstep-bench", "--backend", "mpi",
                                                                 "--memory", "ordinary")}, flags.rounds))
    training = medians(bench.interleave({f"{net} {backend}": lambda net=net, backend=backend: steps(flags, backend, net)
                                         for net in NETS for backend in ("gloo", "mpi")}, flags.rounds))
    if flags.json:
        print(json.dumps({"all_reduce": calls, "ddp": training}))
        return
    plain, ours = calls["MPI_Allreduce"], calls["mpi"]
    table(["bytes", "MPI_Allreduce, us", "backend mpi, us", "ratio"],
          [[size, f"{plain[size]:.2f}", f"{ours[size]:.2f}", f"{ours[size] / plain[size]:.2f}"] for size in SIZES])
    table(["net", "gloo: ms a step", "mpi: ms a step", "gloo: share exposed", "mpi: share exposed"],
          [[net, *(f"{training[f'{net} {backend}']['seconds'] * 1000:.1f}" for backend in ("gloo", "mpi")),
            *(f"{training[f'{net} {backend}']['exposed']:.2f}" for backend in ("gloo", "mpi"))] for net in NETS])


if __name__ == "__main__":
    main()
