# SPDX-License-Identifier: BSD-3-Clause
"""Draws the time of an all-reduce against its size, both on logarithmic scales, as SVG."""
import math

NAMES = {"gloo": "Gloo", "mpi": "Open MPI", "shm ordinary": "Lockstep", "shm inplace": "Lockstep, bucket memory",
         "memory": "the memory's limit"}
COLOURS = {"gloo": "#b5482f", "mpi": "#c59422", "shm ordinary": "#4a78b0", "shm inplace": "#1d4f91", "memory": "#8a8a8a"}
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 420, 70, 190, 30, 50


def size_text(size):
    return f"{size >> 20} MB" if size >= 1 << 20 else f"{size >> 10} KB"


def time_text(microseconds):
    return f"{microseconds / 1000:g} ms" if microseconds >= 1000 else f"{microseconds:g} us"


def svg(rows):
    """`rows` as run_comm.py has them: {(collective, bytes, who): microseconds}."""
    sizes = sorted({size for _, size, _ in rows})
    low, high = min(rows.values()), max(rows.values())
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))

    def x(size):
        span = math.log(sizes[-1] / sizes[0]) or 1
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log(size / sizes[0]) / span

    def y(microseconds):
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (math.log10(microseconds) - first) / (last - first)

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
             f'font-size="12"><rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
             f'<text x="{LEFT}" y="18">all-reduce of float32 between two processes of one host: time by size</text>']
    for power in range(first, last + 1):
        height = y(10.0 ** power)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{height:.1f}" y2="{height:.1f}" stroke="#ddd"/>'
                     f'<text x="{LEFT - 8}" y="{height + 4:.1f}" text-anchor="end">{time_text(10.0 ** power)}</text>')
    for size in sizes:
        parts.append(f'<text x="{x(size):.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{size_text(size)}</text>')
    for who, name in NAMES.items():
        line = [(size, rows["all-reduce", size, who]) for size in sizes if ("all-reduce", size, who) in rows]
        if not line:
            continue
        points = " ".join(f"{x(size):.1f},{y(time):.1f}" for size, time in line)
        dash = ' stroke-dasharray="4 3"' if who == "memory" else ""
        parts.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS[who]}" stroke-width="2"{dash}/>')
        place = y(line[-1][1]) + {"memory": 14, "shm inplace": 2, "shm ordinary": -8}.get(who, 4)
        parts.append(f'<text x="{WIDTH - RIGHT + 8}" y="{place:.1f}" fill="{COLOURS[who]}">{name}</text>')
    return "\n".join([*parts, "</svg>", ""])
