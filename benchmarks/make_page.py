#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Writes docs/benchmarks.md from page.md and results/*.json, and docs/all_reduce.svg from the newest run of its topic. A line {{<topic>}} of page.md becomes the first table of the newest run of the
topic and of the run with which it is compared (Shown has the other forms), {{ranges}} the table of RANGES,
and {{others}} the topics that no line names."""
import dataclasses
import pathlib
import re

import plot_comm
import records

HERE = pathlib.Path(__file__).resolve().parent
LARGE = ("64 KB", "1 MB", "25 MB", "100 MB")


@dataclasses.dataclass
class Range:
    """A row of the table of ranges. The factor is that of the runs' rows for which `rows` holds, from the columns by name."""
    benchmark: str
    compared_with: str
    topic: str
    columns: tuple
    factor: object
    rows: object = lambda row: row.get("size", "").startswith(LARGE)


OPEN_MPI = "Open MPI 4.1.4"
GLOO = "PyTorch's DDP over Gloo"
RANGES = (
    Range("all-reduce, 64 KB to 100 MB, zero-copy (registered memory)", OPEN_MPI, "all_reduce", ("Open MPI, us", "shm, zero-copy, us"),
          lambda mpi, shm: mpi / shm),
    Range("all-reduce, 64 KB to 100 MB, ordinary tensors", OPEN_MPI, "all_reduce", ("Open MPI, us", "shm, ordinary, us"),
          lambda mpi, shm: mpi / shm),
    Range("other collectives, send with receive, 64 KB to 25 MB", OPEN_MPI, "collectives", ("Open MPI / shm",),
          lambda ratio: ratio),
    Range("MNIST, time of an epoch", GLOO, "mnist", ("DDP, 2 ranks",), lambda ratio: 1 / ratio,
          lambda row: row["side"].startswith("Lockstep, shm / PyTorch")),
    Range("training steps of four nets", GLOO, "ddp", ("times as fast",), lambda ratio: ratio, lambda row: True),
)


def factors(each, run):
    for table in run["tables"]:
        for cells in table["rows"]:
            row = dict(zip(table["columns"], cells))
            values = [row.get(column) for column in each.columns]
            if None not in values and each.rows(row):
                yield each.factor(*map(records.number_of, values))


def factor_text(factor):
    return f"{factor:.1f}" if factor >= 2 else f"{factor:.2f}"


def range_lines(runs):
    """The README has the same rows."""
    yield "| benchmark | compared with | times as fast | least favourable run |"
    yield "|---|---|---|---|"
    for each in RANGES:
        found = [(factor, run) for run in runs.values() if run["topic"] == each.topic for factor in factors(each, run)]
        lowest, run = min(found, key=lambda pair: pair[0])
        highest = max(factor for factor, _ in found)
        least = f"{run['date']}, {run['processor']}"
        yield f"| {each.benchmark} | {each.compared_with} | {factor_text(lowest)} to {factor_text(highest)} | {least} |"


@dataclasses.dataclass
class Shown:
    """A line of page.md in braces: <topic> [number of the table] [: <row>|... by <column>: <value>|...]. The second part shows a row for
    each text of the columns `rows`, a column for each text of `column`, and in each cell the first value and, in brackets, the
    others."""
    topic: str
    table: int
    rows: list
    column: str
    values: list


def shown(line):
    found = re.fullmatch(r"\{\{(\w+)( \d+)?(?:: (.+) by (.+): (.+))?\}\}", line)
    if not found:
        return None
    topic, table, rows, column, values = found.groups()
    return Shown(topic, int(table or 1) - 1, rows and rows.split("|"), column, values and values.split("|"))


def caption(run, table, what):
    commit = f"`{run['commit']}`" if run["commit"] else "commit not recorded"
    rounds = run["rounds"] and f"{run['rounds']} round{'s' * (run['rounds'] > 1)}"
    facts = [f"`{run['command']}`" if run["command"] else "command not recorded", f"{run['date'] or 'date not recorded'}, {commit}",
             run["processor"] or "processor not recorded", f"LibTorch {run['libtorch'] or 'not recorded'}", rounds, run["conditions"]]
    values = [name.removesuffix(records.TIME_SUFFIX) for name in what.values or []]
    title = table["title"] + (f": {values[0]} ({'; '.join(values[1:])})" if values else "")
    return f"**{title}.** {'; '.join(filter(None, facts))}."


def crossed(heads, rows, what):
    """The table with a column for each text of what.column."""
    def of(row, name):
        return row[heads.index(name.removesuffix(records.TIME_SUFFIX))]

    columns = list(dict.fromkeys(of(row, what.column) for row in rows))
    lines = {}
    for row in rows:
        first, *others = (of(row, name) for name in what.values)
        others = ", ".join(filter(None, others))
        line = lines.setdefault(tuple(of(row, name) for name in what.rows), dict.fromkeys(columns, ""))
        line[of(row, what.column)] = f"{first} ({others})" if others else first
    return [*what.rows, *columns], [[*key, *line.values()] for key, line in lines.items()]


def run_lines(run, what):
    table = run["tables"][what.table]
    heads, rows = records.texts_of(table)
    if what.column:
        heads, rows = crossed(heads, rows, what)
    return [caption(run, table, what), "", *records.markdown(heads, rows)]


def topic_lines(what, runs):
    newest = next((run for run in runs.values() if run["topic"] == what.topic), None)
    if newest is None:
        raise SystemExit(f"page.md: there is no run of the topic {what.topic}")
    yield from run_lines(newest, what)
    if newest["compared_with"]:
        yield from ["", *run_lines(runs[newest["compared_with"]], what)]


def page(folder=HERE):
    runs = records.load(folder / "results")
    lines, topics = [], set()
    for line in (folder / "page.md").read_text(encoding="utf-8").splitlines():
        what = shown(line)
        topics.add(what and what.topic)
        lines += [line] if not what else range_lines(runs) if what.topic == "ranges" else topic_lines(what, runs)
    others = sorted({run["topic"] for run in runs.values()} - topics)
    return "\n".join(lines).replace("{{others}}", ", ".join(f"`{topic}`" for topic in others)) + "\n"


def picture(folder=HERE):
    return plot_comm.svg(next(run for run in records.load(folder / "results").values() if run["topic"] == "all_reduce"))


if __name__ == "__main__":
    (HERE.parent / "docs" / "benchmarks.md").write_text(page(), encoding="utf-8")
    (HERE.parent / "docs" / "all_reduce.svg").write_text(picture(), encoding="utf-8")
