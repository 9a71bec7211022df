#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Times all-reduce between two hosts of two ranks with the backends hierarchical and gloo, interleaved in one run. The hosts are
network namespaces with a cable between them, whose rate is limited. Also counts the bytes that a host sends per call. Needs root."""
import contextlib
import json
import os
import subprocess

import bench_support as bench

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


def on_both_hosts(arguments, timeout):
    """The stdout of lockstep-bench on two nodes of two ranks."""
    nodes = []
    for number, host in enumerate(HOSTS):
        command = ["ip", "netns", "exec", host, bench.program("lockstep"), "run", "--nnodes", "2", "--node-rank", str(number),
                   "--master-addr", ADDRESSES[0], "--nproc-per-node", "2", "--no-python", bench.program("lockstep-bench"),
                   *arguments]
        nodes.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                      env=os.environ | {"OMP_NUM_THREADS": "1", "LOCKSTEP_SECRET": "of this benchmark"}))
    outputs = [node.communicate(timeout=timeout) for node in nodes]
    if any(node.returncode for node in nodes):
        raise SystemExit(f"lockstep-bench failed:\n{outputs}")
    return outputs[0][0]


def times(sizes, timeout):
    """{bytes: {backend: microseconds}}"""
    arguments = ["all-reduce", "--sizes", sizes, "--backend", "hierarchical,gloo", "--memory", "ordinary", "--json", "--no-bind"]
    output = on_both_hosts(arguments, timeout)
    rows = {}
    for row in json.loads("\n".join(line.split("] ", 1)[-1] for line in output.splitlines())):
        rows.setdefault(row["bytes"], {})[row["backend"]] = row["microseconds"]
    return rows


def traffic(backend, size, timeout):
    """Bytes that the first host sends in ten more iterations, the same number of calls for each backend."""
    totals = []
    for calls in (4, 14):
        before = sent_bytes()
        on_both_hosts(["all-reduce", "--sizes", str(size), "--backend", backend, "--memory", "ordinary", "--iterations",
                       str(calls), "--warmup", "1", "--no-check", "--no-bind"], timeout)
        totals.append(sent_bytes() - before)
    return totals[1] - totals[0]


def report(rate, rows, bytes_sent):
    print(f"\n{rate}: all-reduce, two hosts of two ranks")
    print(f"{'bytes':>12}{'gloo':>14}{'hierarchical':>14}   gloo / hierarchical")
    for size, us in rows.items():
        print(f"{size:12}{us['gloo'] / 1000:11.2f} ms{us['hierarchical'] / 1000:11.2f} ms{us['gloo'] / us['hierarchical']:12.2f}")
    print(f"bytes that a host sends, gloo / hierarchical: {bytes_sent['gloo'] / bytes_sent['hierarchical']:.3f} (formula: 1.5)")
    print("goal at 25 MB and 1gbit: at least 1.35 times as fast, at no size slower")


def main():
    parser = bench.parser(__doc__, rounds=1)
    parser.add_argument("--rates", default="1gbit,10gbit", help="limits of the cable, as tc has them")
    parser.add_argument("--sizes", default="1K,64K,1M,25M,100M")
    flags = parser.parse_args()
    everything = {}
    for rate in flags.rates.split(","):
        with two_hosts(rate):
            bench.progress(rate)
            rows = times(flags.sizes, flags.timeout)
            size = 25_000_000
            bytes_sent = {backend: traffic(backend, size, flags.timeout) for backend in ("gloo", "hierarchical")}
        everything[rate] = {"microseconds": rows, "bytes_sent": bytes_sent}
        if not flags.json:
            report(rate, rows, bytes_sent)
    if flags.json:
        print(json.dumps(everything))


if __name__ == "__main__":
    main()
