# SPDX-License-Identifier: BSD-3-Clause
"""Runs `lockstep bench` and its MPI twin in turns, and puts their rows together. What comes out is
{(collective, bytes, ranks, who): median microseconds}, where `who` is one of WHO."""
import json
import os
import shutil
import statistics
import subprocess
import sys

import bench_support as bench

# backend and memory in the rows of the programs. Open MPI has two ways for an all-reduce, one buffer (as all others
# here) or two; the faster counts.
WHO = {("gloo", "ordinary"): "gloo", ("mpi", "ordinary"): "mpi", ("mpi", "separate"): "mpi",
       ("shm", "ordinary"): "ordinary", ("shm", "inplace"): "inplace", ("memory", "limit"): "limit",
       ("gloo", "-"): "gloo", ("mpi", "-"): "mpi", ("shm", "-"): "ordinary"}


def rows_of(output):
    """The fastest of each `who`; ends the script when a value was wrong."""
    rows = {}
    for row in json.loads(output):
        if row["wrong"]:
            sys.exit(f"{row['wrong']} wrong values: {row}")
        key = row["collective"], row["bytes"], row["ranks"], WHO[row["backend"], row["memory"]]
        rows[key] = min(row["microseconds"], rows.get(key, row["microseconds"]))
    return rows


def options(collectives, sizes):
    return [",".join(collectives), "--sizes", ",".join(map(str, sizes)), "--json"]


def lockstep(collectives, sizes, ranks, backends, timeout):
    command = [bench.program("lockstep"), "bench", "--nproc", str(ranks), *options(collectives, sizes),
               "--backend", ",".join(backends)]
    return rows_of(bench.finished(command, timeout, os.environ | {"LOCKSTEP_LOG_LEVEL": "error"}, stderr=None))


def has_mpi():
    return shutil.which("mpirun") is not None and (bench.BUILD / "bin" / "mpi_collectives").exists()


def mpi_version():
    return subprocess.run(["mpirun", "--version"], capture_output=True, text=True).stdout.splitlines()[0]


def mpi(collectives, sizes, ranks, timeout):
    crowded = ranks > len(os.sched_getaffinity(0))
    sharing = ["--oversubscribe", "--mca", "mpi_yield_when_idle", "1"] if crowded else []
    # mpi_collectives binds its ranks as lockstep bench does; mpirun itself refuses to have two on one core.
    command = ["mpirun", "--allow-run-as-root", "-n", str(ranks), "--bind-to", "none", *sharing,
               bench.program("mpi_collectives"), *options(collectives, sizes)]
    return rows_of(bench.finished(command, timeout, stderr=None))


def turns_for(size):
    """Runs of each side in a round: the phases of a machine in which calls of a microsecond take twice that last seconds."""
    return 5 if size <= 1024 else 1


def in_turns(collectives, sizes, ranks, backends, rounds, timeout):
    """Medians over the rounds. In each, both programs run size by size, so that what else the machine does meets both."""
    taken = {}
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}: {', '.join(collectives)}; {ranks} ranks", file=sys.stderr, flush=True)
        for size in (size for size in sizes for _ in range(turns_for(size))):
            rows = lockstep(collectives, [size], ranks, backends, timeout)
            if has_mpi():
                rows |= mpi(collectives, [size], ranks, timeout)
            for key, microseconds in rows.items():
                taken.setdefault(key, []).append(microseconds)
    return {key: statistics.median(all_rounds) for key, all_rounds in taken.items()}
