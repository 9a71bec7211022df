#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""A training step on two cores of one host: DataParallel with two replicas on the CPU, Python threads that run the same
replicas, the module alone with two threads in each operator, and DistributedDataParallel with two ranks that are threads or
processes; in alternating slices."""
import bench_support as bench

STEPS = {"resnet18": 15, "gpt": 30, "chain": 200, "mlp": 6}


def measure(flags, net):
    arguments = ["--net", net, "--steps", str(STEPS[net])]
    processes = [*bench.benchmark("ddp_step"), "--mode", "ddp", *arguments]
    bench.progress(f"net {net}")
    runs = bench.interleave(
        {"Lockstep": lambda: bench.run_pinned([*bench.benchmark("data_parallel_step"), *arguments], 2, flags.timeout)[-1],
         "Python": lambda: bench.run_pinned([*bench.twin("data_parallel_step"), *arguments], 2, flags.timeout)[-1],
         "process ranks": lambda: bench.launch("lockstep run", processes, 2, flags.timeout)[-1]}, flags.rounds)
    columns = {"module": ("Lockstep", "module_seconds"), "replicas": ("Lockstep", "replicas_seconds"),
               "Python module": ("Python", "module_seconds"), "Python replicas": ("Python", "replicas_seconds"),
               "thread ranks": ("Lockstep", "ranks_seconds"), "process ranks": ("process ranks", "ddp_seconds")}
    return {name: bench.of_rounds(runs[side], key, 1e3) for name, (side, key) in columns.items()}


def main():
    parser = bench.recording_parser(__doc__, rounds=3)
    parser.add_argument("--nets", nargs="+", choices=STEPS, default=list(STEPS))
    flags = parser.parse_args()
    results = {net: measure(flags, net) for net in flags.nets}
    names = {"module": "module, 2 threads", "replicas": "DataParallel, 2 replicas", "Python module": "Python, module",
             "Python replicas": "Python, 2 replicas", "thread ranks": "2 ranks as threads", "process ranks": "2 ranks as processes"}
    table = bench.table("Milliseconds per step on two cores", ["net", *names.values(), "replicas, times as fast as Python's"],
                        [[net, *(each[name] for name in names), bench.ratio(each["Python replicas"], each["replicas"])]
                         for net, each in results.items()])
    bench.report(flags, results, {"data_parallel": [table]}, ["Goal: DataParallel's replicas faster than Python's."])


if __name__ == "__main__":
    main()
