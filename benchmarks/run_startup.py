#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Time from nothing to a finished all-reduce on two ranks: `lockstep run` with examples/01_hello_allreduce, and torchrun with
its Python counterpart, in alternating runs."""
import statistics

import bench_support as bench


def main():
    flags = bench.recording_parser(__doc__, rounds=7, timeout=120).parse_args()
    commands = {
        "torchrun": [bench.PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
                     bench.twin("hello_allreduce")[1]],
        "lockstep run": [bench.program("lockstep"), "run", "--nproc-per-node", "2",
                         bench.program("01_hello_allreduce")],
    }
    seconds = bench.interleave({name: lambda command=command: bench.wall_seconds(command, flags.timeout)
                                for name, command in commands.items()}, flags.rounds + 1)
    seconds = {name: values[1:] for name, values in seconds.items()}  # the first round fills the page cache
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    ratio = medians["lockstep run"] / medians["torchrun"]
    table = bench.table("Start of two ranks, one all-reduce, exit; seconds", ["lockstep run", "torchrun"],
                        [[seconds["lockstep run"], seconds["torchrun"]]])
    bench.report(flags, {"seconds": seconds, "median_seconds": medians, "ratio": ratio}, {"startup": [table]},
                 [f"lockstep run/torchrun: {bench.goal(ratio, 0.2)}"])


if __name__ == "__main__":
    main()
