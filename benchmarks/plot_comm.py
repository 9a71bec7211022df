#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Draws the time of an all-reduce between two ranks against its size, both on logarithmic scales, as SVG:
plot_comm.py RESULT.json PICTURE.svg, where the result is what run_comm.py --json prints."""
import json
import math
import pathlib
import sys
from xml.sax.saxutils import escape

from comm_tables import size_text

# In the order of the legend. Dashed: the limit of the machine, not a library.
LINES = {"gloo": ("Gloo", "#c2410c", ""), "mpi": ("Open MPI", "#a16207", ""), "ordinary": ("Lockstep shm", "#2563eb", ""),
         "zero-copy": ("Lockstep shm, zero-copy", "#1e3a8a", ""), "limit": ("memory limit", "#6b7280", "5 4")}
WIDTH, HEIGHT = 760, 460
LEFT, RIGHT, TOP, BOTTOM = 70, 180, 60, 60
LABEL_GAP = 16
STYLE = """text { font: 12px system-ui, sans-serif; fill: #374151 } .title { font-size: 15px; font-weight: 600; fill: #111827 }
.grid { stroke: #e5e7eb } .curve { fill: none; stroke-width: 2; stroke-linejoin: round }"""


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
    yield text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 16, "size of the tensor", text_anchor="middle")


def label_places(ends):
    """Heights for labels near the ends of their curves, top to bottom, none over another."""
    places = {}
    lowest = -math.inf
    for height, who in sorted((height, who) for who, height in ends.items()):
        lowest = max(height, lowest + LABEL_GAP)
        places[who] = lowest
    return places


def svg(rows, machine):
    """`rows` as comm_runs.py has them."""
    curves = {who: sorted((key[1], time) for key, time in rows.items() if key[0] == "all-reduce" and key[2:] == (2, who))
              for who in LINES}
    curves = {who: points for who, points in curves.items() if points}
    times = [time for points in curves.values() for _, time in points]
    sizes = [size for points in curves.values() for size, _ in points]
    x = Scale(min(sizes), max(sizes), LEFT, WIDTH - RIGHT)
    y = Scale(10.0 ** math.floor(math.log10(min(times))), 10.0 ** math.ceil(math.log10(max(times))), HEIGHT - BOTTOM, TOP)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
             f'aria-label="Time of an all-reduce against its size">', f"<style>{STYLE}</style>",
             f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
             text(LEFT, 26, "all-reduce of float32 between two processes of one machine", class_="title"),
             text(LEFT, 45, f"median time, lower is better; {machine['processor']}, one core a process"), *axes(x, y)]
    places = label_places({who: y(points[-1][1]) for who, points in curves.items()})
    for who, points in curves.items():
        name, colour, dashes = LINES[who]
        path = " ".join(f"{x(size)},{y(time)}" for size, time in points)
        parts.append(f'<polyline class="curve" stroke="{colour}" stroke-dasharray="{dashes or "none"}" points="{path}"/>')
        parts += [f'<circle cx="{x(size)}" cy="{y(time)}" r="2.5" fill="{colour}"/>' for size, time in points if not dashes]
        parts.append(text(WIDTH - RIGHT + 10, round(places[who] + 4, 1), name, style=f"fill: {colour}"))
    return "\n".join([*parts, "</svg>", ""])


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    result = json.loads(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8"))
    rows = {(row["collective"], row["bytes"], row["ranks"], row["who"]): row["microseconds"] for row in result["rows"]}
    pathlib.Path(sys.argv[2]).write_text(svg(rows, result["machine"]), encoding="utf-8")


if __name__ == "__main__":
    main()
