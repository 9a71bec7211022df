# SPDX-License-Identifier: BSD-3-Clause
"""Tables of the results of comm_runs.interleave(), {(collective, bytes, ranks, who): [microseconds of each round]}, and their goals."""
import bench_support as bench

COLUMNS = {"gloo": "Gloo, us", "mpi": "Open MPI, us", "ordinary": "shm, ordinary, us", "zero-copy": "shm, zero-copy, us",
           "limit": "memory limit, us"}
KB, MB = 1 << 10, 1 << 20
# Minimum speedup, by the size of an all-reduce between two ranks.
GOALS = {("gloo", "zero-copy"): {64 * KB: 40, MB: 15, 25 * MB: 10, 100 * MB: 8},
         ("mpi", "zero-copy"): {KB: 1, 64 * KB: 2, MB: 2, 25 * MB: 2, 100 * MB: 2},
         ("mpi", "ordinary"): {KB: 0.5, 64 * KB: 1.2, MB: 1.2, 25 * MB: 1.2, 100 * MB: 1.2},
         ("limit", "zero-copy"): {25 * MB: 1 / 1.3}}
MANY_GOAL = 1  # minimum speedup of an all-reduce between more ranks beside Open MPI
OTHERS_GOAL, OTHERS_GOAL_1_KB = 0.97, 0.95  # minimum speedup of the other collectives


def size_text(size):
    return f"{size / MB:g} MB" if size >= MB else f"{size / KB:g} KB" if size else "no data"


def speedup(rounds, call, other, own):
    """How many times as fast as `other` `own` is; None where one of them was not measured."""
    times = [rounds.get((*call, who)) for who in (other, own)]
    return bench.ratio(*times) if all(times) else None


def all_reduce(rounds, ranks, sizes):
    have = [who for who in COLUMNS if ("all-reduce", sizes[0], ranks, who) in rounds]
    rows = [[size_text(size), *(rounds["all-reduce", size, ranks, who] for who in have),
             speedup(rounds, ("all-reduce", size, ranks), "gloo", "zero-copy")] for size in sizes]
    return bench.table(f"All-reduce of float32, {ranks} ranks", ["size", *(COLUMNS[who] for who in have), "Gloo / zero-copy"], rows)


def calls_of(rounds, collectives):
    return [(collective, size, 2) for collective in collectives for size in sorted({key[1] for key in rounds if key[0] == collective})]


def others(rounds, collectives):
    rows = [[call[0], size_text(call[1]), rounds[(*call, "ordinary")], rounds.get((*call, "mpi")), speedup(rounds, call, "mpi", "ordinary"),
             rounds.get((*call, "zero-copy")), rounds.get((*call, "gloo"))] for call in calls_of(rounds, collectives)]
    return bench.table("Calls other than all-reduce, two ranks, ordinary tensors",
                       ["call", "size", "shm, us", "Open MPI, us", "Open MPI / shm", "shm, zero-copy, us", "Gloo, us"], rows)


def goals_of(rounds, collectives):
    """(call, other, own, minimum speedup)"""
    for (other, own), by_size in GOALS.items():
        yield from ((("all-reduce", size, 2), other, own, least) for size, least in by_size.items())
    for call in sorted({key[:3] for key in rounds if key[2] > 2}):
        yield from ((call, "mpi", own, MANY_GOAL) for own in ("ordinary", "zero-copy"))
    for call in calls_of(rounds, collectives):
        yield from ((call, other, "ordinary", OTHERS_GOAL if call[1] > KB else OTHERS_GOAL_1_KB) for other in ("gloo", "mpi"))


def missed_goals(rounds, collectives):
    """A line for each goal that was missed."""
    for call, other, own, least in goals_of(rounds, collectives):
        found = speedup(rounds, call, other, own)
        if found is not None and found < least:
            collective, size, ranks = call
            yield f"missed: {collective}, {size_text(size)}, {ranks} ranks: {own} is {found:.2f} times as fast as {other} (goal {least:.3g})"
