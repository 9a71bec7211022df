#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Times float32 collectives: Lockstep's shm, Gloo and the memory limit (`lockstep bench`, interleaved within one run) and
Open MPI (mpi/, which measures in the same way), in alternating slices of a few seconds. Prints the tables of
docs/benchmarks.md and, with all of them, draws docs/all_reduce.svg."""
import json
import os
import pathlib
import platform
import statistics
import sys

import bench_support as bench
import comm_runs
import comm_tables
import plot_comm
from comm_tables import KB, MB

SIZES = [KB, 64 * KB, MB, 25 * MB, 100 * MB]
PLOTTED = [KB, 4 * KB, 16 * KB, 64 * KB, 256 * KB, MB, 4 * MB, 16 * MB, 25 * MB, 64 * MB, 100 * MB]
OTHERS = ["all-gather", "reduce-scatter", "broadcast", "reduce", "gather", "scatter", "all-to-all", "send-recv",
          "barrier"]
MANY = 8


def parse_flags():
    parser = bench.parser(__doc__, rounds=3, timeout=900)
    part = parser.add_mutually_exclusive_group()
    part.add_argument("--quick", action="store_true", help="one round, fewer sizes, no picture")
    part.add_argument("--others", action="store_true", help="only calls other than all-reduce, beside Open MPI, with the figures of each round; no picture")
    parser.add_argument("--plot", type=pathlib.Path, default=bench.ROOT / "docs" / "all_reduce.svg",
                        help="file for the picture of the all-reduce")
    return parser.parse_args()


def measure(flags):
    if flags.others:
        return comm_runs.interleave(OTHERS, SIZES[:4], 2, ["shm"], flags.rounds, flags.timeout)
    rounds = 1 if flags.quick else flags.rounds
    sizes = SIZES if flags.quick else PLOTTED
    rows = comm_runs.interleave(["all-reduce"], sizes, 2, ["shm", "gloo", "memory"], rounds, flags.timeout)
    rows |= comm_runs.interleave(["all-reduce"], SIZES[:4], MANY, ["shm"], rounds, flags.timeout)
    rows |= comm_runs.interleave(OTHERS, [KB, 64 * KB] if flags.quick else SIZES[:4], 2, ["shm", "gloo"], rounds,
                               flags.timeout)
    return rows


def machine():
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        models = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return {"processor": models[0] if models else platform.machine(), "cores": len(os.sched_getaffinity(0)),
            "mpi": comm_runs.mpi_version() if comm_runs.has_mpi() else None}


def print_tables(rounds, rows, where):
    print(f"{where['processor']}, {where['cores']} cores; {where['mpi'] or 'without Open MPI'}. Medians, one core per rank.")
    parts = [comm_tables.collectives_table(rows, OTHERS)]
    if any(key[0] == "all-reduce" for key in rows):
        if where["mpi"]:
            parts.insert(0, comm_tables.many_ranks_ratios(rows, MANY, SIZES[:4]))
        parts = [comm_tables.all_reduce_times(rows, 2, SIZES), comm_tables.all_reduce_ratios(rows, SIZES),
                 comm_tables.all_reduce_times(rows, MANY, SIZES[:4]), *parts]
    else:
        parts.append(comm_tables.rounds_table(rounds, OTHERS))
    for part in parts:
        print("\n" + "\n".join(part))


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
    if not (flags.quick or flags.others):
        flags.plot.write_text(plot_comm.svg(rows, where), encoding="utf-8")
    if flags.json:
        names = "collective", "bytes", "ranks", "who", "microseconds", "rounds"
        print(json.dumps({"machine": where, "rows": [dict(zip(names, (*key, time, rounds[key]))) for key, time in rows.items()]}))
    else:
        print_tables(rounds, rows, where)


if __name__ == "__main__":
    main()
