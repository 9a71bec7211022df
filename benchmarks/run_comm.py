#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Times collectives of float32: Lockstep's shm beside Gloo and the memory's limit (`lockstep bench`, in turns within
one run) and beside Open MPI (mpi/, which measures in the same way; runs of the two take turns). Prints the README's
tables and, unless quick, draws docs/all_reduce.svg."""
import argparse
import json
import os
import pathlib
import platform
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each side; their median counts")
    parser.add_argument("--quick", action="store_true", help="one round, fewer sizes, no picture")
    parser.add_argument("--timeout", type=int, default=900, help="seconds that one run may take")
    parser.add_argument("--plot", type=pathlib.Path, default=bench.ROOT / "docs" / "all_reduce.svg",
                        help="where to draw the all-reduce")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    return parser.parse_args()


def measure(flags):
    rounds = 1 if flags.quick else flags.rounds
    sizes = SIZES if flags.quick else PLOTTED
    rows = comm_runs.in_turns(["all-reduce"], sizes, 2, ["shm", "gloo", "memory"], rounds, flags.timeout)
    rows |= comm_runs.in_turns(["all-reduce"], SIZES[:4], MANY, ["shm"], rounds, flags.timeout)
    rows |= comm_runs.in_turns(OTHERS, [KB, 64 * KB] if flags.quick else SIZES[:4], 2, ["shm", "gloo"], rounds,
                               flags.timeout)
    return rows


def machine():
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        models = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return {"processor": models[0] if models else platform.machine(), "cores": len(os.sched_getaffinity(0)),
            "mpi": comm_runs.mpi_version() if comm_runs.has_mpi() else None}


def print_tables(rows, where):
    print(f"{where['processor']}, {where['cores']} cores; {where['mpi'] or 'without Open MPI'}. Medians, one core a rank.")
    parts = [comm_tables.all_reduce_times(rows, 2, SIZES), comm_tables.all_reduce_ratios(rows, SIZES),
             comm_tables.all_reduce_times(rows, MANY, SIZES[:4])]
    if where["mpi"]:
        parts.append(comm_tables.many_ranks_ratios(rows, MANY, SIZES[:4]))
    parts.append(comm_tables.collectives_table(rows, OTHERS))
    for part in parts:
        print("\n" + "\n".join(part))


def main():
    flags = parse_flags()
    bench.cores(2)
    if not comm_runs.has_mpi():
        print("Open MPI is left out: there is no mpirun, or mpi_collectives was built without it (Debian: "
              "libopenmpi-dev openmpi-bin)", file=sys.stderr)
    if os.getloadavg()[0] > 1:
        print(f"The machine is busy (load {os.getloadavg()[0]:.1f}): figures will be too high", file=sys.stderr)
    where = machine()
    rows = measure(flags)
    if not flags.quick:
        flags.plot.write_text(plot_comm.svg(rows, where), encoding="utf-8")
    if flags.json:
        names = "collective", "bytes", "ranks", "who", "microseconds"
        print(json.dumps({"machine": where, "rows": [dict(zip(names, (*key, time))) for key, time in rows.items()]}))
    else:
        print_tables(rows, where)


if __name__ == "__main__":
    main()
