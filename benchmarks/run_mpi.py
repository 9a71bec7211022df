#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""All-reduce over the backend mpi beside MPI_Allreduce and MPI_Iallreduce, in alternating slices of the same processes; and
the step of DistributedDataParallel over mpi beside gloo. Two ranks under mpirun."""
import os
import statistics

import bench_support as bench
import comm_tables

NETS = ("resnet18", "gpt")


def parse_flags():
    options = bench.recording_parser(__doc__, rounds=5)
    options.add_argument("--steps", type=int, default=20, help="timed steps of each net")
    return options.parse_args()


def mpirun(timeout, program, *arguments):
    """What a program prints under mpirun. It binds its ranks itself, or needs no binding."""
    command = ["mpirun", "--allow-run-as-root", "-n", "2", "--bind-to", "none", *program, *arguments]
    env = {"LOCKSTEP_LOG_LEVEL": "error", "OMP_NUM_THREADS": "1"}
    return bench.finished(command, timeout, os.environ | env, stderr=None)


def all_reduces(timeout):
    """{(form, bytes): {side: microseconds}}"""
    return {(row["form"], row["bytes"]): {side: row[f"{side}_microseconds"] for side in ("mpi", "lockstep")}
            for row in bench.objects(mpirun(timeout, [bench.program("mpi_all_reduce")]))}


def steps(flags, backend, net):
    """The slower rank's seconds of a step, and the share of it in which the rank waits for communication."""
    output = mpirun(flags.timeout, bench.benchmark("ddp_step"), "--net", net, "--backend", backend, "--mode", "ddp", "--steps",
                    str(flags.steps))
    slowest = max(bench.objects(output), key=lambda rank: rank["ddp_seconds"])
    return {"seconds": slowest["ddp_seconds"], "exposed": slowest["exposed_ms"] / 1000 / slowest["ddp_seconds"]}


def call_row(form, size, plain, ours):
    return [form, comm_tables.size_text(size), plain, ours, statistics.median(ours) - statistics.median(plain), bench.ratio(ours, plain)]


def main():
    flags = parse_flags()
    rounds = [all_reduces(flags.timeout) for _ in range(flags.rounds)]
    calls = {key: {side: [one[key][side] for one in rounds] for side in rounds[0][key]} for key in rounds[0]}
    training = bench.interleave({f"{net} {backend}": lambda net=net, backend=backend: steps(flags, backend, net)
                                 for net in NETS for backend in ("gloo", "mpi")}, flags.rounds)
    all_reduce = bench.table("All-reduce of float32 in place, two ranks",
                             ["MPI's call", "bytes", "MPI, us", "backend mpi, us", "difference, us", "backend / MPI"],
                             [call_row(*key, *times.values()) for key, times in calls.items()])
    ddp = bench.table("DDP, milliseconds per step; share of it in which a rank waits", ["net", "gloo", "mpi", "waits, gloo", "waits, mpi"],
                      [[net, *(bench.of_rounds(training[f"{net} {backend}"], key, factor) for key, factor in (("seconds", 1e3), ("exposed", 1))
                               for backend in ("gloo", "mpi"))] for net in NETS])
    results = {"all_reduce": [{"form": form, "bytes": size, **times} for (form, size), times in calls.items()], "ddp": training}
    bench.report(flags, results, {"mpi": [all_reduce, ddp]})


if __name__ == "__main__":
    main()
