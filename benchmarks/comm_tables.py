# SPDX-License-Identifier: BSD-3-Clause
"""Markdown tables of the results of comm_runs.py, with their goals."""

NAMES = {"gloo": "Gloo", "mpi": "Open MPI", "ordinary": "Lockstep shm", "zero-copy": "Lockstep shm, zero-copy",
         "limit": "memory limit"}
KB, MB = 1 << 10, 1 << 20
# Minimum speedup, by the size of an all-reduce between two ranks.
GOALS = {("gloo", "zero-copy"): {64 * KB: 40, MB: 15, 25 * MB: 10, 100 * MB: 8},
         ("mpi", "zero-copy"): {KB: 1, 64 * KB: 2, MB: 2, 25 * MB: 2, 100 * MB: 2},
         ("mpi", "ordinary"): {KB: 0.5, 64 * KB: 1.2, MB: 1.2, 25 * MB: 1.2, 100 * MB: 1.2}}
LIMIT_GOAL = {25 * MB: 1.3}  # maximum of zero-copy / memory limit
OTHERS_GOAL, OTHERS_GOAL_1_KB = 0.97, 0.95  # minimum speedup of the other collectives


def size_text(size):
    return f"{size / MB:g} MB" if size >= MB else f"{size / KB:g} KB"


def time_text(microseconds):
    return f"{microseconds / 1000:.3g} ms" if microseconds >= 1000 else f"{microseconds:.3g} us"


def ratio_text(ratio):
    return f"{ratio:.1f}x" if ratio >= 2 else f"{ratio:.2f}x"


def held(ratio, goal, at_least=True):
    if goal is None:
        return ratio_text(ratio)
    met = ratio >= goal if at_least else ratio <= goal
    return f"{ratio_text(ratio)} (goal {goal:g}: {'met' if met else 'MISSED'})"


def markdown(head, lines):
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for line in lines:
        yield "| " + " | ".join(line) + " |"


def all_reduce_times(rows, ranks, sizes):
    have = [who for who in NAMES if ("all-reduce", sizes[0], ranks, who) in rows]
    lines = [[size_text(size), *(time_text(rows["all-reduce", size, ranks, who]) for who in have)] for size in sizes]
    return markdown([f"all-reduce, float32, {ranks} ranks", *(NAMES[who] for who in have)], lines)


def all_reduce_ratios(rows, sizes):
    def time(who, size):
        return rows.get(("all-reduce", size, 2, who))

    pairs = [pair for pair in GOALS if time(pair[0], sizes[0])]
    lines = [[size_text(size), *(held(time(other, size) / time(own, size), GOALS[other, own].get(size))
                                 for other, own in pairs),
              held(time("zero-copy", size) / time("limit", size), LIMIT_GOAL.get(size), at_least=False)]
             for size in sizes]
    return markdown(["times as fast", *(f"{NAMES[own]} vs {NAMES[other]}" for other, own in pairs),
                     "zero-copy / memory limit"], lines)


def many_ranks_ratios(rows, ranks, sizes):
    lines = []
    for size in sizes:
        mpi = rows["all-reduce", size, ranks, "mpi"]
        lines.append([size_text(size), *(held(mpi / rows["all-reduce", size, ranks, own], 1)
                                         for own in ("ordinary", "zero-copy"))])
    return markdown([f"{ranks} ranks: times as fast as Open MPI", "ordinary", "zero-copy"], lines)


def collectives_table(rows, collectives):
    """Each collective beside the faster of the others."""
    who = [name for name in NAMES if any(key[3] == name for key in rows) and name != "limit"]
    lines = []
    for collective in collectives:
        for size in sorted({key[1] for key in rows if key[0] == collective}):
            times = {name: rows[collective, size, 2, name] for name in who if (collective, size, 2, name) in rows}
            best = min(times[name] for name in ("gloo", "mpi") if name in times)
            lines.append([collective, size_text(size) if size else "", *(time_text(times[name]) if name in times else ""
                                                                         for name in who),
                          held(best / times["ordinary"], OTHERS_GOAL if size > KB else OTHERS_GOAL_1_KB)])
    return markdown(["2 ranks", "size", *(NAMES[name] for name in who), "shm vs the fastest other"], lines)


def rounds_table(rounds, collectives):
    """The figures of each round, in microseconds."""
    lines = [[collective, size_text(size) if size else "", *(" ".join(f"{time:.0f}" if time >= 100 else f"{time:.3g}"
                                                                      for time in rounds[collective, size, 2, who])
                                                             for who in ("ordinary", "mpi"))]
             for collective in collectives for size in sorted({key[1] for key in rounds if key[0] == collective})]
    return markdown(["2 ranks", "size", f"{NAMES['ordinary']}, us", f"{NAMES['mpi']}, us"], lines)
