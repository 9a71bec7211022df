#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Times float32 collectives: Lockstep's shm, Gloo and the memory limit (`lockstep bench`, interleaved within one run) and
Open MPI (mpi/, which measures in the same way), in alternating slices of a few seconds. make_page.py draws docs/all_reduce.svg from
the recorded run."""
import os
import statistics
import sys

import bench_support as bench
import comm_runs
import comm_tables
from comm_tables import KB, MB

SIZES = [KB, 64 * KB, MB, 25 * MB, 100 * MB]
OTHERS = ["all-gather", "reduce-scatter", "broadcast", "reduce", "gather", "scatter", "all-to-all", "send-recv",
          "barrier"]
MANY = 8


def parse_flags():
    parser = bench.recording_parser(__doc__, rounds=3, timeout=900)
    part = parser.add_mutually_exclusive_group()
    part.add_argument("--quick", action="store_true", help="one round, fewer sizes")
    part.add_argument("--others", action="store_true", help="only calls other than all-reduce, beside Open MPI")
    return parser.parse_args()


def measure(flags):
    if flags.others:
        return comm_runs.interleave(OTHERS, SIZES[:4], 2, ["shm"], flags.rounds, flags.timeout)
    rounds = 1 if flags.quick else flags.rounds
    rows = comm_runs.interleave(["all-reduce"], SIZES, 2, ["shm", "gloo", "memory"], rounds, flags.timeout)
    rows |= comm_runs.interleave(["all-reduce"], SIZES[:4], MANY, ["shm"], rounds, flags.timeout)
    rows |= comm_runs.interleave(OTHERS, [KB, 64 * KB] if flags.quick else SIZES[:4], 2, ["shm", "gloo"], rounds,
                               flags.timeout)
    return rows


def machine():
    return {"processor": bench.processor(), "cores": len(os.sched_getaffinity(0)),
            "mpi": comm_runs.mpi_version() if comm_runs.has_mpi() else None}


def tables_of(rounds):
    tables = {"collectives": [comm_tables.others(rounds, OTHERS)]}
    if any(key[0] == "all-reduce" for key in rounds):
        tables |= {"all_reduce": [comm_tables.all_reduce(rounds, 2, SIZES)],
                   "all_reduce_many_ranks": [comm_tables.all_reduce(rounds, MANY, SIZES[:4])]}
    return tables


def main():
    flags = parse_flags()
    bench.cores(2)
    if not comm_runs.has_mpi():
        if flags.others:
            sys.exit("--others needs Open MPI (Debian: libopenmpi-dev openmpi-bin)")
        print("Without Open MPI: mpirun is missing, or mpi_collectives was not built (Debian: "
              "libopenmpi-dev openmpi-bin)", file=sys.stderr)
    if os.getloadavg()[0] > 1:
        print(f"The machine is busy (load {os.getloadavg()[0]:.1f}): times will be too high", file=sys.stderr)
    where = machine()
    rounds = measure(flags)
    rows = {key: statistics.median(times) for key, times in rounds.items()}
    names = "collective", "bytes", "ranks", "who", "microseconds", "rounds"
    results = {"machine": where, "rows": [dict(zip(names, (*key, time, rounds[key]))) for key, time in rows.items()]}
    bench.report(flags, results, tables_of(rounds), [f"{where['processor']}, {where['cores']} cores; {where['mpi'] or 'without Open MPI'}.",
                                                     *comm_tables.missed_goals(rounds, OTHERS)])


if __name__ == "__main__":
    main()
