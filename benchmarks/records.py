# SPDX-License-Identifier: BSD-3-Clause
"""Recorded runs: benchmarks/results/<topic>.<date>.json, one file for each run, which make_page.py shows. Standard library only.

A run is an object with KEYS. A field that nobody recorded is null. A table is an object with `title`, `columns` and `rows`. A cell is
a number, a text, null, or the list of the figures of all rounds, whose median is shown. Times in a column whose name ends with ", us"
are shown in microseconds or milliseconds."""
import json
import pathlib
import re
import statistics

RESULTS = pathlib.Path(__file__).resolve().parent / "results"
# `date` is UTC, "2026-11-25 23:13"; `compared_with` is the name of another run's file, without ".json".
KEYS = {"topic": str, "date": str, "commit": str, "processor": str, "libtorch": str, "command": str, "rounds": int, "conditions": str,
        "compared_with": str, "tables": list}
TABLE_KEYS = {"title": str, "columns": list, "rows": list}
NEVER_NULL = {"topic", "tables", "columns", "rows"}
DATE = re.compile(r"\d{4}-\d\d-\d\d( \d\d:\d\d)?")
TIME_SUFFIX = ", us"


def wrong_fields(what, entry, keys):
    if not isinstance(entry, dict) or entry.keys() != keys.keys():
        yield f"{what} has not exactly the keys {', '.join(keys)}"
        return
    for key, kind in keys.items():
        if not (isinstance(entry[key], kind) or (entry[key] is None and key not in NEVER_NULL)):
            yield f"{key} is not {kind.__name__}{'' if key in NEVER_NULL else ' or null'}"


def is_cell(value):
    numbers = value if isinstance(value, list) else [0 if value is None or isinstance(value, str) else value]
    return bool(numbers) and all(type(number) in (int, float) for number in numbers)


def problems(path):
    """What is wrong with the file of a run."""
    try:
        run = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        return [f"not JSON: {error}"]
    found = list(wrong_fields("the run", run, KEYS))
    if found:
        return found
    if not path.name.startswith(f"{run['topic']}."):
        found.append(f"its name does not begin with the topic {run['topic']}")
    if run["date"] and not DATE.fullmatch(run["date"]):
        found.append(f"date {run['date']!r} is not like 2026-11-25 23:13")
    if run["compared_with"] and not (path.parent / f"{run['compared_with']}.json").exists():
        found.append(f"there is no {run['compared_with']}.json")
    for table in run["tables"]:
        found += wrong_fields("a table", table, TABLE_KEYS)
    if not found:
        found += [f"a row of {table['title']!r} has not {len(table['columns'])} cells, each a number, text, null or a list of numbers"
                  for table in run["tables"] for row in table["rows"] if len(row) != len(table["columns"]) or not all(map(is_cell, row))]
    return found


def load(folder):
    """{name of the file: run}, the newest first."""
    runs = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in pathlib.Path(folder).glob("*.json")}
    return dict(sorted(runs.items(), key=lambda item: (item[1]["date"] or "", item[0]), reverse=True))


def rounded(cell):
    """The cell with four significant digits for the figure of a round, two decimals for any other."""
    if isinstance(cell, list):
        return [float(f"{number:.4g}") for number in cell]
    return round(cell, 2) if isinstance(cell, float) else cell


def write(run, folder):
    """Writes a run with one row of each table on a line, and returns the path of its file."""
    path = pathlib.Path(folder) / f"{run['topic']}.{run['date'].replace(' ', 'T').replace(':', '')}.json"
    text = json.dumps({**run, "tables": [{**table, "rows": []} for table in run["tables"]]}, indent=2, ensure_ascii=False)
    for table in run["tables"]:
        rows = ",\n".join("        " + json.dumps(row, ensure_ascii=False) for row in table["rows"])
        text = text.replace('"rows": []', f'"rows": [\n{rows}\n      ]', 1)
    path.write_text(text + "\n", encoding="utf-8")
    return path


def significant(number):
    """Three significant digits, or all digits before the point."""
    return f"{number:.0f}" if abs(number) >= 100 else f"{number:.3g}"


def time_text(microseconds):
    return f"{significant(microseconds / 1000)} ms" if microseconds >= 1000 else f"{significant(microseconds)} us"


def number_of(cell):
    return statistics.median(cell) if isinstance(cell, list) else cell


def column_texts(name, cells):
    """The texts of a column's cells. Its numbers with a fraction have as many decimals as the longest one."""
    decimals = max((len(repr(cell).partition(".")[2]) for cell in cells if isinstance(cell, float)), default=0)
    for cell in cells:
        if cell is None or isinstance(cell, str):
            yield cell or ""
        elif name.endswith(TIME_SUFFIX):
            yield time_text(number_of(cell))
        elif isinstance(cell, list):
            yield significant(number_of(cell))
        else:
            yield f"{cell:.{decimals}f}" if isinstance(cell, float) else str(cell)


def texts_of(table):
    """The heads and the rows of a table as texts."""
    columns = [list(column_texts(name, cells)) for name, cells in zip(table["columns"], zip(*table["rows"]))]
    return [name.removesuffix(TIME_SUFFIX) for name in table["columns"]], [list(row) for row in zip(*columns)]


def without_repetitions(rows):
    """Blanks the first cells of a row that repeat those of the row before."""
    before = []
    for row in rows:
        same = 0
        while same < min(len(before), len(row) - 1) and row[same] and row[same] == before[same]:
            same += 1
        before = row
        yield [""] * same + row[same:]


def markdown(heads, rows):
    """The lines of a table."""
    lines = [re.sub("  +", " ", f"| {' | '.join(row)} |") for row in (heads, *without_repetitions(rows))]
    return [lines[0], "|" + "---|" * len(heads), *lines[1:]]
