#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Times all-reduce between two hosts of two ranks with the backends hierarchical and gloo, and DDP's steps of a large MLP beside
PyTorch's over Gloo, interleaved in one run. The hosts are network namespaces with a cable between them, whose rate is limited.
Also counts the bytes that a host sends per call. Needs root."""
import contextlib
import json
import os
import statistics
import subprocess

import bench_support as bench
import comm_tables

HOSTS = (f"lockstep{os.getpid()}a", f"lockstep{os.getpid()}b")
ADDRESSES = ("10.79.0.1", "10.79.0.2")


def ip(*words):
    subprocess.run(["ip", *words], check=True)


@contextlib.contextmanager
def two_hosts(rate):
    """Two network namespaces; each sends `rate` at most."""
    try:
        for host in HOSTS:
            ip("netns", "add", host)
        ip("link", "add", "cable", "netns", HOSTS[0], "type", "veth", "peer", "name", "cable", "netns", HOSTS[1])
        for host, address in zip(HOSTS, ADDRESSES):
            ip("-n", host, "addr", "add", f"{address}/24", "dev", "cable")
            for link in ("lo", "cable"):
                ip("-n", host, "link", "set", link, "up")
            if rate:
                limit = ["rate", rate, "burst", "128kb", "latency", "50ms"]
                subprocess.run(["ip", "netns", "exec", host, "tc", "qdisc", "add", "dev", "cable", "root", "tbf", *limit],
                               check=True)
        yield
    finally:
        for host in HOSTS:
            subprocess.run(["ip", "netns", "del", host], check=False, stderr=subprocess.DEVNULL)


def sent_bytes():
    """By the first host, so far."""
    lines = subprocess.run(["ip", "netns", "exec", HOSTS[0], "cat", "/proc/net/dev"], check=True, text=True,
                           stdout=subprocess.PIPE).stdout.splitlines()
    return int(next(line for line in lines if "cable:" in line).split(":")[1].split()[8])


def on_both_hosts(rank, timeout):
    """The stdout of the command `rank` on two nodes of two ranks."""
    nodes = []
    for number, host in enumerate(HOSTS):
        command = ["ip", "netns", "exec", host, bench.program("lockstep"), "run", "--nnodes", "2", "--node-rank", str(number),
                   "--master-addr", ADDRESSES[0], "--nproc-per-node", "2", "--no-python", *rank]
        nodes.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                      env=os.environ | {"OMP_NUM_THREADS": "1", "LOCKSTEP_SECRET": "of this benchmark",
                                                       "GLOO_SOCKET_IFNAME": "cable"}))
    outputs = [node.communicate(timeout=timeout) for node in nodes]
    if any(node.returncode for node in nodes):
        raise SystemExit(f"{rank[0]} failed:\n{outputs}")
    return outputs[0][0]


def times(sizes, timeout):
    """{bytes: {backend: microseconds}}"""
    arguments = [bench.program("lockstep-bench"), "all-reduce", "--sizes", sizes, "--backend", "hierarchical,gloo", "--memory", "ordinary", "--json", "--no-bind"]
    output = on_both_hosts(arguments, timeout)
    rows = {}
    for row in json.loads("\n".join(line.split("] ", 1)[-1] for line in output.splitlines())):
        rows.setdefault(row["bytes"], {})[row["backend"]] = row["microseconds"]
    return rows


def socket_times(sizes, timeout):
    """{bytes: microseconds} of a plain socket that carries as many bytes in both directions, as an all-reduce of two hosts has to."""
    program = [bench.PYTHON, str(bench.ROOT / "benchmarks" / "two_way_socket.py"), ADDRESSES[0], "--sizes", ",".join(map(str, sizes))]
    sides = [subprocess.Popen(["ip", "netns", "exec", host, *program, *arguments], stdout=subprocess.PIPE, text=True)
             for host, arguments in zip(HOSTS, (["--listen"], []))]
    outputs = [side.communicate(timeout=timeout)[0] for side in sides]
    if any(side.returncode for side in sides):
        raise SystemExit("two_way_socket.py failed")
    return {int(size): seconds * 1e6 for size, seconds in json.loads(outputs[1]).items()}


def traffic(backend, size, timeout):
    """Bytes that the first host sends in ten more iterations, the same number of calls for each backend."""
    totals = []
    for calls in (4, 14):
        before = sent_bytes()
        on_both_hosts([bench.program("lockstep-bench"), "all-reduce", "--sizes", str(size), "--backend", backend, "--memory", "ordinary", "--iterations",
                       str(calls), "--warmup", "1", "--no-check", "--no-bind"], timeout)
        totals.append(sent_bytes() - before)
    return totals[1] - totals[0]


def ddp_steps(flags):
    """{side: seconds of a step}"""
    steps = ["--net", "mlp", "--mode", "ddp", "--steps", str(flags.steps)]
    ours = [*bench.benchmark("ddp_step"), *steps]
    sides = {"PyTorch, gloo": [*bench.twin("ddp_step"), *steps], "gloo": [*ours, "--backend", "gloo"], "hierarchical": ours}
    for hook in flags.hooks.split(","):
        sides[f"{hook} between hosts"] = [*ours, "--between-hosts", hook]
    runs = {side: lambda command=command: bench.objects(on_both_hosts(command, flags.timeout))[-1]["ddp_seconds"]
            for side, command in sides.items()}
    return {side: statistics.median(seconds) for side, seconds in bench.interleave(runs, flags.rounds).items()}


def rows_of(rate, found):
    for size, us in found["microseconds"].items():
        socket = found["socket_microseconds"][size]
        yield [rate, comm_tables.size_text(size), *([one / 1e3] for one in (us["gloo"], us["hierarchical"], socket)),
               us["gloo"] / us["hierarchical"], us["hierarchical"] / socket]


def tables_of(everything):
    tables = {"hosts": [bench.table("All-reduce between two network namespaces of two ranks, milliseconds",
                                    ["cable", "bytes", "gloo", "hierarchical", "socket", "gloo / hierarchical", "hierarchical / socket"],
                                    [row for rate, found in everything.items() for row in rows_of(rate, found)]),
                        bench.table("Bytes that a host sends", ["cable", "gloo / hierarchical", "by the formula"],
                                    [[rate, found["bytes_sent"]["gloo"] / found["bytes_sent"]["hierarchical"], 1.5]
                                     for rate, found in everything.items()])]}
    steps = [[rate, side, [1e3 * seconds], found["ddp_seconds"]["PyTorch, gloo"] / seconds]
             for rate, found in everything.items() for side, seconds in found["ddp_seconds"].items()]
    if steps:
        tables["hosts_ddp"] = [bench.table("A step of DDP of an MLP with 67 million parameters",
                                           ["cable", "side", "milliseconds", "times as fast as PyTorch"], steps)]
    return tables


def main():
    parser = bench.recording_parser(__doc__, rounds=1)
    parser.add_argument("--rates", default="1gbit,10gbit", help="limits of the cable, as tc has them")
    parser.add_argument("--sizes", default="1K,64K,1M,25M,100M")
    parser.add_argument("--steps", type=int, default=5, help="of DDP in a slice")
    parser.add_argument("--hooks", default="bf16,powersgd,one-bit", help="of ddp_step --between-hosts")
    flags = parser.parse_args()
    everything = {}
    for rate in flags.rates.split(","):
        with two_hosts(rate):
            bench.progress(rate)
            rows = times(flags.sizes, flags.timeout)
            sockets = socket_times(rows, flags.timeout)
            size = 25_000_000
            bytes_sent = {backend: traffic(backend, size, flags.timeout) for backend in ("gloo", "hierarchical")}
            steps = ddp_steps(flags) if flags.rounds else {}
        everything[rate] = {"microseconds": rows, "socket_microseconds": sockets, "bytes_sent": bytes_sent, "ddp_seconds": steps}
    bench.report(flags, everything, tables_of(everything), [
        "Goals at 1gbit: at 25 MB at least 1.35 times as fast as gloo, at no size slower; at 100 MB at most 1.15 of the socket, which the "
        "link limits; a step over hierarchical at least 1.3 times as fast as PyTorch's, with bf16 between hosts 2 times.",
        "Goal at 10gbit: at most 1.3 of the socket."])


if __name__ == "__main__":
    main()
