#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Checks scale_simulation.py against all-reduces between 2, 4, 8 and 16 hosts: network namespaces at one switch, whose links
are slow enough to be the limit. The costs are fitted to 2 and 4 hosts; 8 and 16 are predicted. Needs root.
With --curves FOLDER: no runs; draws the pictures of docs/scaling.md there and prints its tables."""
import contextlib
import itertools
import json
import os
import pathlib
import resource
import signal
import subprocess
import sys
import time

import bench_support as bench
import scale_plot
import scale_simulation as sim

RATES = {2: 1e9, 4: 200e6, 8: 100e6, 16: 50e6}
FITTED = (2, 4)
BURST = 128 << 10  # bytes that a link takes at once after a pause


def ip(*words, check=True):
    subprocess.run(["ip", *words], check=check, stderr=None if check else subprocess.DEVNULL)


@contextlib.contextmanager
def switched_hosts(count, rate):
    """Names and addresses of `count` network namespaces, each of which sends `rate` bits a second at most. They are removed
    whatever happens here, SIGTERM and Ctrl-C included."""
    names = [f"lockstep{os.getpid()}h{number}" for number in range(count)]
    switch = f"lockstep{os.getpid()}s"
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        ip("netns", "add", switch)
        ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        ip("-n", switch, "link", "set", "bridge", "up")
        for number, name in enumerate(names):
            ip("netns", "add", name)
            ip("link", "add", "cable", "netns", name, "type", "veth", "peer", "name", f"port{number}", "netns", switch)
            ip("-n", switch, "link", "set", f"port{number}", "master", "bridge", "up")
            ip("-n", name, "addr", "add", f"10.79.0.{number + 1}/24", "dev", "cable")
            for link in ("lo", "cable"):
                ip("-n", name, "link", "set", link, "up")
            subprocess.run(["ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "cable", "root", "tbf", "rate",
                            f"{rate:.0f}bit", "burst", str(BURST), "latency", "400ms"], check=True)
        yield [(name, f"10.79.0.{number + 1}") for number, name in enumerate(names)]
    finally:
        for name in (*names, switch):
            ip("netns", "del", name, check=False)
        signal.signal(signal.SIGTERM, before)


def on_all(hosts, local, arguments, timeout):
    """The stdout of node 0's lockstep-bench, with `local` ranks on each host."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "LOCKSTEP_SECRET": "of this benchmark"}
    nodes = []
    try:
        for number, (name, _) in enumerate(hosts):
            command = ["ip", "netns", "exec", name, bench.program("lockstep"), "run", "--nnodes", str(len(hosts)), "--node-rank",
                       str(number), "--master-addr", hosts[0][1], "--nproc-per-node", str(local), "--plain-lines", "--no-python",
                       bench.program("lockstep-bench"), *arguments]
            nodes.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment))
        outputs = [node.communicate(timeout=timeout) for node in nodes]
    finally:
        for node in nodes:
            if node.poll() is None:
                node.terminate()
        for node in nodes:
            node.wait()
    if any(node.returncode for node in nodes):
        raise SystemExit("lockstep-bench failed:\n" + "\n".join(error for _, error in outputs))
    return outputs[0][0]


def processor_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measured(count, local, sizes, iterations, timeout):
    """The all-reduces between `count` hosts, as runs that fitted() takes."""
    with switched_hosts(count, RATES[count]) as hosts:
        started, before = time.monotonic(), processor_seconds()
        rows = json.loads(on_all(hosts, local, ["all-reduce", "--backend", "hierarchical", "--memory", "ordinary", "--sizes", sizes,
                                                "--iterations", str(iterations), "--warmup", "1", "--no-bind", "--json"], timeout))
    share = (processor_seconds() - before) / (time.monotonic() - started) / os.cpu_count()
    return [{"hosts": count, "local": local, "rate": RATES[count], "burst": BURST, "bytes": row["bytes"], "seconds": row["microseconds"] / 1e6,
             "p10": row["p10"] / 1e6, "p90": row["p90"] / 1e6, "processors": share, "load": os.getloadavg()[0]} for row in rows]


def burst_seconds(run):
    return run.get("burst", 0) * 8 / run["rate"]


def terms(run):
    """The run's messages, seconds on the link at one byte for each of the tensor, and bytes on the host: see Note [Cost model]
    in tools/lockstep_bench/cost_model.h."""
    hosts, size = run["hosts"], run["bytes"]
    chunks = 1 if size <= sim.SMALL else -(-size // sim.chunk_bytes(hosts))
    link = 2 * (hosts - 1) / hosts * size * 8 / run["rate"]
    return (chunks * 2 * (hosts - 1), link if link > burst_seconds(run) else 0,
            min(size, sim.chunk_bytes(hosts)) if run["local"] > 1 else 0)


def solved(rows, goals, used):
    """The least squares of rows x = goals in the columns `used`; None if they are dependent."""
    matrix = [[sum(row[i] * row[j] for row in rows) for j in used] + [sum(row[i] * goal for row, goal in zip(rows, goals))] for i in used]
    for at in range(len(used)):
        pivot = max(range(at, len(used)), key=lambda row: abs(matrix[row][at]))
        matrix[at], matrix[pivot] = matrix[pivot], matrix[at]
        if abs(matrix[at][at]) < 1e-12:
            return None
        for row in range(len(used)):
            if row != at:
                factor = matrix[row][at] / matrix[at][at]
                matrix[row] = [a - factor * b for a, b in zip(matrix[row], matrix[at])]
    return [matrix[at][-1] / matrix[at][at] for at in range(len(used))]


def fitted(runs):
    """Costs with the least squared relative error over `runs`, none negative."""
    scale = [max(term) or 1 for term in zip(*map(terms, runs))]
    rows = [[term / unit / run["seconds"] for term, unit in zip(terms(run), scale)] for run in runs]
    # A burst shortens the time of a link that has more to carry.
    goals = [1 + (burst_seconds(run) / run["seconds"] if terms(run)[1] else 0) for run in runs]
    best, least = [0.0] * 3, float("inf")
    for count in (1, 2, 3):
        for used in itertools.combinations(range(3), count):
            found = solved(rows, goals, used)
            if found is None or min(found) < 0:
                continue
            values = [0.0] * 3
            for at, value in zip(used, found):
                values[at] = value
            error = sum((sum(a * b for a, b in zip(row, values)) - goal) ** 2 for row, goal in zip(rows, goals))
            if error < least:
                best, least = values, error
    message, wire, host_byte = (value / unit for value, unit in zip(best, scale))
    return sim.Costs(message=message, wire=wire, host_byte=host_byte)


def predicted(run, costs):
    def seconds(rate):
        return sim.hierarchical_seconds(run["bytes"], run["hosts"], run["local"], rate, costs)
    whole = seconds(run["rate"])
    return whole - min(burst_seconds(run), whole - seconds(1e15))


def report(runs, costs):
    print(f"fitted to {' and '.join(map(str, FITTED))} hosts: message {costs.message * 1e6:.0f} us, wire {costs.wire:.3f}, "
          f"host {costs.host_byte * 1e9:.2f} ns a byte\n")
    print("| hosts x ranks | Mbit/s | bytes | measured ms | p10 .. p90 | simulated ms | error | processors | load |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    for run in runs:
        seconds = predicted(run, costs)
        kind = "" if run["hosts"] in FITTED else "**"
        print(f"| {run['hosts']} x {run['local']} | {run['rate'] / 1e6:.0f} | {run['bytes']} | {run['seconds'] * 1e3:.1f} | "
              f"{run['p10'] * 1e3:.1f} .. {run['p90'] * 1e3:.1f} | {seconds * 1e3:.1f} | "
              f"{kind}{100 * (seconds / run['seconds'] - 1):+.0f} %{kind} | {100 * run['processors']:.0f} % | {run['load']:.1f} |")
    print("goal: errors of 8 and 16 hosts (in bold) within 20 %")


HOSTS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1250)
LOCAL = 8
TENSORS = {"resnet50": ("ResNet-50, 102 MB", 102_000_000), "7b": ("7 billion parameters, 28 GB", 28_000_000_000)}
LINKS = {"1 Gbit/s": 1e9, "25 Gbit/s": 25e9, "100 Gbit/s": 100e9}


def curves(size, rate, costs):
    """{way: [(hosts, seconds)]} with LOCAL ranks on each host."""
    ways = {"hierarchical": lambda hosts: sim.hierarchical_seconds(size, hosts, LOCAL, rate, costs),
            "flat ring": lambda hosts: sim.ring_seconds(size, hosts * LOCAL, rate, costs),
            "tree of hosts": lambda hosts: sim.tree_seconds(size, hosts, rate, costs)}
    return {name: [(hosts, way(hosts)) for hosts in HOSTS] for name, way in ways.items()}


def draw(folder, costs):
    for key, (name, size) in TENSORS.items():
        panels = [(link, curves(size, rate, costs)) for link, rate in LINKS.items()]
        pathlib.Path(folder, f"scaling_{key}.svg").write_text(scale_plot.svg(panels, f"Simulated time of an all-reduce of {name}, {LOCAL} ranks per host"), encoding="utf-8")
        print(f"\n{name}, 1250 hosts of {LOCAL} ranks, seconds\n\n| link | " + " | ".join(panels[0][1]) + " |")
        print("|---|" + "---:|" * len(panels[0][1]))
        for link, ways in panels:
            print(f"| {link} | " + " | ".join(f"{points[-1][1]:.3g}" for points in ways.values()) + " |")
    print("\n| ranks | rendezvous s | requests | a Gloo group: all pairs s | connections | on use s | connections | rank dies s | "
          "host silent s | restart s |\n|" + "---:|" * 10)
    for ranks in (16, 64, 256, 1000, 4000, 10_000):
        nodes = max(2, ranks // LOCAL)
        seconds, requests = sim.rendezvous(ranks, costs)
        every, on_use = (sim.connect_group(ranks, costs, way) for way in (False, True))
        print(f"| {ranks} | {seconds:.2f} | {requests} | {every[0]:.3g} | {every[1]} | {on_use[0]:.2g} | {on_use[1]} | "
              f"{sim.lose_rank(nodes, costs) * 1e3:.2g} ms | {sim.lose_rank(nodes, costs, silently=True):.1f} | "
              f"{sim.restart(nodes, LOCAL, costs):.2f} |")


def main():
    parser = bench.parser(__doc__, rounds=1)
    parser.add_argument("--hosts", default="2,4,8,16")
    parser.add_argument("--local", type=int, default=2, help="ranks on each host")
    parser.add_argument("--sizes", default="16K,256K,1M,4M,20M")
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--curves", metavar="FOLDER")
    flags = parser.parse_args()
    if flags.curves:
        return draw(flags.curves, sim.Costs())
    runs = []
    for count in map(int, flags.hosts.split(",")):
        bench.progress(f"{count} hosts of {flags.local} ranks, {RATES[count] / 1e6:.0f} Mbit/s")
        runs += measured(count, flags.local, flags.sizes, flags.iterations, flags.timeout)
    if flags.json:
        return print(json.dumps(runs))
    return report(runs, fitted([run for run in runs if run["hosts"] in FITTED]))


if __name__ == "__main__":
    main()
