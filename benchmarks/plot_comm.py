# SPDX-License-Identifier: BSD-3-Clause
"""Draws a recorded run: the time of an all-reduce between two ranks against its size, both on logarithmic scales, as SVG."""
import math
from xml.sax.saxutils import escape

import records
from comm_tables import COLUMNS, KB, MB, size_text

# In the order of the legend. Dashed: the limit of the machine, not a library. The colours are legible on light and dark paper.
LINES = {"gloo": ("Gloo", "#d9622b", ""), "mpi": ("Open MPI", "#b7791f", ""), "ordinary": ("Lockstep shm", "#3b82f6", ""),
         "zero-copy": ("Lockstep shm, zero-copy", "#8b5cf6", ""), "limit": ("memory limit", "#8b949e", "5 4")}
UNITS = {"KB": KB, "MB": MB}
WIDTH, HEIGHT = 760, 460
LEFT, RIGHT, TOP, BOTTOM = 70, 180, 60, 60
LABEL_GAP = 16
# Of every picture of the documentation. On a page with a dark scheme paper and ink change places.
STYLE = """svg { --ink: #374151; --strong: #111827; --paper: #fff; --grid: #e5e7eb }
@media (prefers-color-scheme: dark) { svg { --ink: #c9d1d9; --strong: #f0f6fc; --paper: #0d1117; --grid: #30363d } }
text { font: 12px system-ui, sans-serif; fill: var(--ink) } .title { font-size: 15px; font-weight: 600; fill: var(--strong) }
.paper { fill: var(--paper) } .grid { stroke: var(--grid) } .curve { fill: none; stroke-width: 2; stroke-linejoin: round }"""


class Scale:
    """A logarithmic axis from `low` at pixel `start` to `high` at pixel `end`."""

    def __init__(self, low, high, start, end):
        self.low, self.high, self.start, self.end = low, high, start, end

    def __call__(self, value):
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return round(self.start + share * (self.end - self.start), 1)


def seconds_text(microseconds):
    if microseconds >= 1e6:
        return f"{microseconds / 1e6:g} s"
    return f"{microseconds / 1000:g} ms" if microseconds >= 1000 else f"{microseconds:g} µs"


def text(x, y, words, **more):
    attributes = "".join(f' {name.rstrip("_").replace("_", "-")}="{value}"' for name, value in more.items())
    return f'<text x="{x}" y="{y}"{attributes}>{escape(words)}</text>'


def axes(x, y):
    for power in range(round(math.log10(y.low)), round(math.log10(y.high)) + 1):
        height = y(10 ** power)
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{height}" y2="{height}"/>'
        yield text(LEFT - 8, height + 4, seconds_text(10 ** power), text_anchor="end")
    size = 1 << 10
    while size <= x.high:
        yield f'<line class="grid" x1="{x(size)}" x2="{x(size)}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        yield text(x(size), HEIGHT - BOTTOM + 18, size_text(size), text_anchor="middle")
        size *= 8
    yield text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 16, "size of the tensor (1 KB is 1024 bytes)", text_anchor="middle")


def label_places(ends):
    """Heights for labels near the ends of their curves, top to bottom, none over another."""
    places = {}
    lowest = -math.inf
    for height, who in sorted((height, who) for who, height in ends.items()):
        lowest = max(height, lowest + LABEL_GAP)
        places[who] = lowest
    return places


def bytes_of(size):
    number, unit = size.split()
    return int(number) * UNITS[unit]


def svg(run):
    """`run` as records.py has it, of the topic all_reduce."""
    table = run["tables"][0]
    rows = [dict(zip(table["columns"], row)) for row in table["rows"]]
    curves = {who: [(bytes_of(row["size"]), records.number_of(row[COLUMNS[who]])) for row in rows if row.get(COLUMNS[who]) is not None]
              for who in LINES}
    curves = {who: points for who, points in curves.items() if points}
    times = [time for points in curves.values() for _, time in points]
    sizes = [size for points in curves.values() for size, _ in points]
    x = Scale(min(sizes), max(sizes), LEFT, WIDTH - RIGHT)
    y = Scale(10.0 ** math.floor(math.log10(min(times))), 10.0 ** math.ceil(math.log10(max(times))), HEIGHT - BOTTOM, TOP)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
             f'aria-label="Time of an all-reduce against its size">', f"<style>{STYLE}</style>",
             f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}"/>',
             text(LEFT, 22, "all-reduce of float32 between two processes of one machine", class_="title"),
             text(LEFT, 38, f"median of {run['rounds']} rounds, lower is better; {run['processor']}, one core per process"),
             text(LEFT, 53, f"{run['date']}, commit {run['commit']}, LibTorch {run['libtorch']}, Open MPI 4.1.4"), *axes(x, y)]
    places = label_places({who: y(points[-1][1]) for who, points in curves.items()})
    for who, points in curves.items():
        name, colour, dashes = LINES[who]
        path = " ".join(f"{x(size)},{y(time)}" for size, time in points)
        parts.append(f'<polyline class="curve" stroke="{colour}" stroke-dasharray="{dashes or "none"}" points="{path}"/>')
        parts += [f'<circle cx="{x(size)}" cy="{y(time)}" r="2.5" fill="{colour}"/>' for size, time in points if not dashes]
        parts.append(text(WIDTH - RIGHT + 10, round(places[who] + 4, 1), name, style=f"fill: {colour}"))
    return "\n".join([*parts, "</svg>", ""])
