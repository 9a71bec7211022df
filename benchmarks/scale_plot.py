# SPDX-License-Identifier: BSD-3-Clause
"""Curves on logarithmic axes, several panels side by side, as SVG."""
import math

from plot_comm import STYLE, Scale, text

PANEL, GAP, HEIGHT, LEFT, TOP, BOTTOM = 240, 26, 330, 60, 70, 70
# Dashes show curves that lie on each other.
LINES = (("#3b82f6", "none"), ("#d9622b", "6 4"), ("#b7791f", "2 4"))


def bounds(curves):
    """(lowest and highest x, lowest and highest power of ten of y)"""
    points = [point for curve in curves.values() for point in curve]
    xs, ys = zip(*points)
    return (min(xs), max(xs), 10.0 ** math.floor(math.log10(min(ys))), 10.0 ** math.ceil(math.log10(max(ys))))


def seconds_text(seconds):
    if seconds < 1:
        return f"{seconds * 1000:g} ms"
    return f"{seconds:g} s" if seconds < 1e4 else f"10^{round(math.log10(seconds))} s"


def panel(number, name, curves, limits):
    left = LEFT + number * (PANEL + GAP)
    x = Scale(limits[0], limits[1], left, left + PANEL)
    y = Scale(limits[2], limits[3], HEIGHT - BOTTOM, TOP)
    yield text(left, TOP - 10, name)
    for power in range(round(math.log10(limits[2])), round(math.log10(limits[3])) + 1):
        height = y(10.0 ** power)
        yield f'<line class="grid" x1="{left}" x2="{left + PANEL}" y1="{height}" y2="{height}"/>'
        if number == 0:
            yield text(left - 8, height + 4, seconds_text(10.0 ** power), text_anchor="end")
    for hosts in (2, 8, 32, 128, 1250):
        if limits[0] <= hosts <= limits[1]:
            yield f'<line class="grid" x1="{x(hosts)}" x2="{x(hosts)}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
            yield text(x(hosts), HEIGHT - BOTTOM + 16, str(hosts), text_anchor="middle")
    for (colour, dashes), points in zip(LINES, curves.values()):
        path = " ".join(f"{x(at)},{y(value)}" for at, value in points)
        yield f'<polyline class="curve" stroke="{colour}" stroke-dasharray="{dashes}" points="{path}"/>'


def svg(panels, title):
    """`panels`: (name, {curve: [(hosts, seconds)]}), all with the same curves and scales."""
    every = [bounds(curves) for _, curves in panels]
    limits = (min(b[0] for b in every), max(b[1] for b in every), min(b[2] for b in every), max(b[3] for b in every))
    width = LEFT + len(panels) * (PANEL + GAP)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" role="img" aria-label="{title}">',
             f"<style>{STYLE}</style>", f'<rect class="paper" width="{width}" height="{HEIGHT}"/>',
             text(LEFT, 22, title, class_="title"),
             text(LEFT, 40, "simulated, not measured: benchmarks/scale_simulation.py with the costs of docs/scaling.md")]
    for number, (name, curves) in enumerate(panels):
        parts += panel(number, name, curves, limits)
    for number, ((colour, _), name) in enumerate(zip(LINES, panels[0][1])):
        parts.append(text(LEFT + number * 200, HEIGHT - 18, name, style=f"fill: {colour}"))
    parts.append(text(width - GAP, HEIGHT - BOTTOM + 34, "hosts", text_anchor="end"))
    return "\n".join([*parts, "</svg>", ""])
