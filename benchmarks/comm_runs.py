# SPDX-License-Identifier: BSD-3-Clause
"""Interleaves runs of `lockstep bench` and its MPI counterpart and merges their rows into
{(collective, bytes, ranks, who): [microseconds of each round]}, where `who` is a value of WHO."""
import json
import os
import shutil
import statistics
import subprocess
import sys

import bench_support as bench

# Keys: backend and memory in the programs' rows. Open MPI's all-reduce runs with one buffer and with two; the faster counts.
WHO = {("gloo", "ordinary"): "gloo", ("mpi", "ordinary"): "mpi", ("mpi", "separate"): "mpi",
       ("shm", "ordinary"): "ordinary", ("shm", "zero-copy"): "zero-copy", ("memory", "limit"): "limit",
       ("gloo", "-"): "gloo", ("mpi", "-"): "mpi", ("shm", "-"): "ordinary"}


def rows_of(output):
    """The fastest row of each `who`. Ends the script when a value is wrong."""
    rows = {}
    for row in json.loads(output):
        if row["wrong"]:
            sys.exit(f"{row['wrong']} wrong values: {row}")
        key = row["collective"], row["bytes"], row["ranks"], WHO[row["backend"], row["memory"]]
        rows[key] = min(row["microseconds"], rows.get(key, row["microseconds"]))
    return rows


def options(collectives, sizes):
    return [",".join(collectives), "--sizes", ",".join(map(str, sizes)), "--json"]


def lockstep(collectives, sizes, ranks, backends, memories, timeout):
    command = [bench.program("lockstep"), "bench", "--nproc", str(ranks), *options(collectives, sizes),
               "--backend", ",".join(backends), "--memory", memories]
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


def runs_of(backends):
    """(memory, backends) of each run. A run has one kind of memory, as Open MPI's: two sets of tensors evict each other from the
    caches."""
    return [("ordinary", [name for name in backends if name != "memory"]), ("zero-copy", [name for name in backends if name != "gloo"])]


def slices_for(size):
    """Slices per round. Short calls get more, because machines have phases of seconds in which they take twice as long."""
    return 5 if size <= 1024 else 1


def interleave(collectives, sizes, ranks, backends, rounds, timeout):
    """Each round alternates slices of a few seconds of both programs, size by size. A round's figure is the median of its slices."""
    taken = {}
    for number in range(rounds):
        slices = {}
        for size in (size for size in sizes for _ in range(slices_for(size))):
            bench.progress(f"round {number + 1} of {rounds}: {', '.join(collectives)}; {ranks} ranks, {size} bytes")
            # Long calls run one collective per slice, so that a slice takes seconds.
            for slice_of in [[name] for name in collectives] if size >= 1 << 20 else [collectives]:
                runs = [lockstep(slice_of, [size], ranks, names, memory, timeout) for memory, names in runs_of(backends)]
                if has_mpi():
                    runs.append(mpi(slice_of, [size], ranks, timeout))
                for key, microseconds in (item for rows in runs for item in rows.items()):
                    slices.setdefault(key, []).append(microseconds)
        for key, times in slices.items():
            taken.setdefault(key, []).append(statistics.median(times))
    return taken
