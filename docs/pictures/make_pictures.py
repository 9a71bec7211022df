#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Draws the pictures of the documentation: make_pictures.py. The timeline is that of a trace that lockstep::trace() wrote
(ddp_timeline.json), the terminal shows what script(1) recorded (killed_rank.typescript, escape characters as ^[). The others are drawn here."""
import json
import pathlib
import re
import sys
import textwrap
from xml.sax.saxutils import escape

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "benchmarks"))
from plot_comm import STYLE, text  # noqa: E402

BLUE, ORANGE, AMBER, VIOLET, GREEN, GRAY = "#3b82f6", "#d9622b", "#b7791f", "#8b5cf6", "#2f9e63", "#8b949e"
MORE_STYLE = """.box { stroke-width: 1.5; rx: 5 } .arrow { stroke: var(--ink); stroke-width: 1.5; fill: none; marker-end: url(#tip) }
.small { font-size: 11px } .strong { font-weight: 600; fill: var(--strong) } .on { fill: #fff; font-size: 11px }"""
TIP = ('<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto-start-reverse">'
       '<path d="M0 0L8 4L0 8z" fill="var(--ink)"/></marker></defs>')


def picture(width, height, title, parts):
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}">',
                      f"<style>{STYLE}\n{MORE_STYLE}</style>", TIP, f'<rect class="paper" width="{width}" height="{height}"/>',
                      text(20, 26, title, class_="title"), *parts, "</svg>", ""])


def box(x, y, width, height, colour, *lines, strong=True):
    """A box with centred lines, the first one strong."""
    yield f'<rect class="box" x="{x}" y="{y}" width="{width}" height="{height}" fill="{colour}" fill-opacity="0.15" stroke="{colour}"/>'
    top = y + height / 2 + 4 - 8 * (len(lines) - 1)
    for number, line in enumerate(lines):
        yield text(x + width / 2, top + 16 * number, line, text_anchor="middle", class_="strong" if strong and number == 0 else "small")


def arrow(*points, both=False):
    start = ' marker-start="url(#tip)"' if both else ""
    return f'<polyline class="arrow"{start} points="{" ".join(f"{x},{y}" for x, y in points)}"/>'


def architecture():
    parts = [*box(20, 50, 720, 44, GREEN, "your program", "torch::nn modules, torch::optim, losses: unchanged"),
             *box(20, 112, 350, 92, VIOLET, "kit (Lockstep::kit)", "loader, data sets, transforms, models", "Trainer, metrics, checkpoints, logs"),
             *box(390, 112, 350, 92, BLUE, "parallel", "DistributedDataParallel, fully_shard, tensor_parallel",
                  "pipelining, context_parallel, experts, amp"),
             *box(20, 222, 720, 62, BLUE, "communication", "init(), ProcessGroup, DeviceMesh, spawn()",
                  "backends: shm, hierarchical, gloo, mpi, nccl"),
             *box(20, 302, 350, 62, BLUE, "tensors", "files, optimizers, state dicts, devices, graphs"),
             *box(390, 302, 350, 62, AMBER, "launcher (no LibTorch)", "lockstep run, top, recorder, doctor"),
             *box(20, 382, 350, 44, GRAY, "LibTorch", "tensors, autograd, c10d"),
             *box(390, 382, 350, 44, GRAY, "foundation", "errors, shared memory, the hardware of a host"),
             text(20, 450, "A layer uses the layers below it. Blue, amber and the foundation are the component Lockstep::distributed.", class_="small")]
    return picture(760, 466, "Layers of Lockstep", parts)


def hosts_and_lanes():
    parts = []
    for host in range(3):
        x = 30 + 250 * host
        parts += box(x, 50, 210, 230, GRAY)
        parts.append(text(x + 105, 72, f"host {host}: shared memory", text_anchor="middle", class_="strong"))
        for lane in range(3):
            parts += box(x + 55, 88 + 62 * lane, 100, 44, (BLUE, ORANGE, VIOLET)[lane], f"rank {3 * host + lane}")
    for lane in range(3):
        y = 110 + 62 * lane
        parts += [arrow((190, y), (330, y), both=True), arrow((440, y), (580, y), both=True),
                  text(260, y - 6, f"lane {lane}", text_anchor="middle", class_="small")]
    parts += [text(30, 306, "all_reduce: 1. reduce_scatter in each host, so each rank has a third of the host's sum;", class_="small"),
              text(30, 324, "2. each lane adds its third over the network; 3. all_gather in each host.", class_="small"),
              text(30, 342, "With H hosts a host sends 2 (H-1)/H of the tensor, however many ranks it has.", class_="small")]
    return picture(780, 360, "hierarchical: lane k joins the k-th rank of every host", parts)


def shared_memory():
    parts = []
    for rank, x in ((0, 30), (1, 550)):
        colour = (BLUE, ORANGE)[rank]
        parts += [*box(x, 60, 180, 60, colour, f"process of rank {rank}", "maps all four files"),
                  *box(x, 170, 180, 50, colour, f"segment {rank}", "descriptors, counters"),
                  *box(x, 240, 180, 50, colour, f"heap {rank}", "buckets of DDP")]
    parts += [arrow((120, 120), (120, 168)), arrow((640, 120), (640, 168)),
              arrow((212, 110), (548, 186)), arrow((548, 110), (212, 186)),
              text(380, 96, "1. publish in one's own segment", text_anchor="middle", class_="small"),
              text(380, 112, "2. read and compare the others' descriptors", text_anchor="middle", class_="small"),
              *box(290, 232, 180, 66, GREEN, "3. a part of 128 KiB", "read both heaps, add,", "write the sum to both"),
              arrow((212, 265), (288, 265), both=True), arrow((548, 265), (472, 265), both=True)]
    return picture(760, 320, "A zero-copy all-reduce of two ranks over shm", parts)


def cube_rank(x, y, dp, pp, tp):
    colour = (BLUE, ORANGE)[pp]
    return box(x, y, 92, 46, colour, f"rank {4 * dp + 2 * pp + tp}", f"dp {dp}, pp {pp}, tp {tp}")


def parallelism():
    """A mesh of 2 x 2 x 2: depth is data parallel, height pipeline, width tensor parallel."""
    parts, places = [], {}
    for dp in (1, 0):
        for pp in range(2):
            for tp in range(2):
                places[dp, pp, tp] = 60 + 180 * tp + 120 * dp, 130 + 130 * pp - 60 * dp
    for (dp, pp, tp), (x, y) in places.items():
        if tp == 0:
            parts.append(arrow((x + 94, y + 23), (places[dp, pp, 1][0] - 2, y + 23), both=True))
        if pp == 0:
            parts.append(arrow((x + 46, y + 48), (x + 46, places[dp, 1, tp][1] - 2), both=True))
        if dp == 0:
            other = places[1, pp, tp]
            parts.append(f'<polyline class="arrow" stroke-dasharray="4 3" points="{x + 80},{y - 2} {other[0] + 12},{other[1] + 48}"/>')
    for place, (x, y) in places.items():
        parts.append(f'<rect class="paper" x="{x}" y="{y}" width="92" height="46"/>')
        parts += cube_rank(x, y, *place)
    legend = (("width: tensor parallel", "a layer in parts; several calls per layer: neighbours"),
              ("height: pipeline", "blue: first stage, orange: second; activations"),
              ("depth: data parallel", "other samples; gradients once per step"))
    for number, (name, words) in enumerate(legend):
        parts += [text(460, 110 + 56 * number, name, class_="strong"), text(460, 128 + 56 * number, words, class_="small")]
    parts.append(text(20, 340, 'init_device_mesh({2, 2, 2}, {.mesh_dim_names = {"dp", "pp", "tp"}}): the last dimension joins neighbours', class_="small"))
    return picture(780, 356, "A mesh of data, pipeline and tensor parallelism", parts)


def which_parallelism():
    questions = (("Does the model with its optimizer fit into one rank?", "DistributedDataParallel"),
                 ("Does it fit if the ranks share it?", "fully_shard(), ZeroRedundancyOptimizer"),
                 ("Is one layer too large, or the network inside a host fast?", "parallelize_module() inside a host"),
                 ("Are hosts slow to reach and layers many?", "pipelining between hosts"),
                 ("Is the sequence too long for one rank?", "context_parallel"))
    parts, yes = [], ("yes", "yes", "yes, also", "yes, also", "yes, also")
    for number, (question, answer) in enumerate(questions):
        y = 50 + 72 * number
        parts += [*box(20, y, 390, 44, BLUE, question), arrow((412, y + 22), (478, y + 22)),
                  text(445, y + 15, yes[number], text_anchor="middle", class_="small"), *box(480, y, 310, 44, GREEN, answer)]
        if number + 1 < len(questions):
            parts += [arrow((215, y + 46), (215, y + 70)), text(224, y + 62, "no" if number < 2 else "then", class_="small")]
    return picture(810, 400, "Which parallelism to choose", parts)


def bar(x, y, width, colour, name):
    yield f'<rect x="{x:.1f}" y="{y}" width="{max(width, 1):.1f}" height="22" fill="{colour}" rx="2"/>'
    if width > 7 * len(name):
        yield text(round(x + 5, 1), y + 15, name, class_="on")


def ddp_timeline():
    run = json.loads((HERE / "ddp_timeline.json").read_text(encoding="utf-8"))
    events = run["events"]
    start = min(event["ts"] for event in events)
    length = max(event["ts"] + event["dur"] for event in events) - start
    scale = 640 / length
    colours = {"forward": GRAY, "backward": BLUE, "waiting for reductions": ORANGE}
    parts = [text(20, 44, f"{run['machine']}; {run['batch']}; {run['date']}, commit {run['commit']}, LibTorch {run['libtorch']}", class_="small")]
    bottom = 66 + 2 * 132
    for tick in range(0, int(length / 1000) + 1, 50):
        x = round(100 + scale * 1000 * tick, 1)
        parts += [f'<line class="grid" x1="{x}" x2="{x}" y1="60" y2="{bottom - 8}"/>', text(x, bottom + 8, f"{tick} ms", text_anchor="middle")]
    for rank in range(2):
        top = 66 + 132 * rank
        parts.append(text(20, top + 15, f"rank {rank}", class_="strong"))
        for event in (event for event in events if event["pid"] == rank):
            x, width = 100 + scale * (event["ts"] - start), scale * event["dur"]
            if event["tid"] == 0:
                parts += bar(x, top, width, colours[event["name"]], event["name"])
            else:
                number, size = re.match(r"bucket (\d+) \((\d+) bytes", event["name"]).groups()
                parts += bar(x, top + 28 * (int(number) + 1), width, VIOLET, f"bucket {number}, {int(size) / 1e6:.1f} MB")
    for number, (name, colour) in enumerate({"forward": GRAY, "backward": BLUE, "bucket": VIOLET, "exposed wait": ORANGE}.items()):
        parts += [f'<rect x="{100 + 140 * number}" y="{bottom + 22}" width="12" height="12" fill="{colour}"/>',
                  text(118 + 140 * number, bottom + 32, name)]
    return picture(760, bottom + 46, run["title"], parts)


def killed_rank():
    """A terminal, dark on every page."""
    colours = {"36": "#39c5cf", "33": "#d29922", "0": "#c9d1d9"}
    rows = []
    for line in (HERE / "killed_rank.typescript").read_text(encoding="utf-8").splitlines():
        mark, prefix, rest = re.fullmatch(r"(?:\^\[\[(\d+)m(\[rank \d\])\^\[\[0m)?(.*)", line).groups()
        indent = len(prefix or "") + 1
        lines = textwrap.wrap((prefix or "") + rest, 106, subsequent_indent=" " * indent, drop_whitespace=True)
        rows.append((lines[0], prefix or "", colours.get(mark, "")))
        rows += [(more, "", "") for more in lines[1:]]
    rows.insert(0, ("$ lockstep run --nproc-per-node 2 build/train", "", ""))
    height = 52 + 17 * len(rows)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 820 {height}" role="img" aria-label="The report of a run whose rank 1 was killed">',
             "<style>text { font: 12px ui-monospace, monospace; fill: #c9d1d9; white-space: pre }</style>",
             f'<rect width="820" height="{height}" rx="8" fill="#0d1117" stroke="#30363d"/>',
             *(f'<circle cx="{20 + 18 * number}" cy="18" r="5" fill="{colour}"/>' for number, colour in enumerate(("#ff5f57", "#febc2e", "#28c840")))]
    for number, (line, prefix, colour) in enumerate(rows):
        shown = f'<tspan fill="{colour}" style="fill: {colour}">{prefix}</tspan>{escape(line[len(prefix):])}' if prefix else escape(line)
        parts.append(f'<text x="16" y="{48 + 17 * number}" xml:space="preserve">{shown}</text>')
    return "\n".join([*parts, "</svg>", ""])


PICTURES = (architecture, hosts_and_lanes, shared_memory, parallelism, which_parallelism, ddp_timeline, killed_rank)


def problems():
    """Names of the pictures that are not what this script draws."""
    files = {draw.__name__ + ".svg": draw for draw in PICTURES}
    return [name for name, draw in files.items() if not (HERE / name).exists() or (HERE / name).read_text(encoding="utf-8") != draw()]


if __name__ == "__main__":
    for draw in PICTURES:
        (HERE / f"{draw.__name__}.svg").write_text(draw(), encoding="utf-8")
