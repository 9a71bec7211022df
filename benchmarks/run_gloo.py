#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Training steps of five nets with DistributedDataParallel over Gloo on two ranks, Lockstep beside PyTorch, in alternating
slices. Prints the milliseconds of each round."""
import bench_support as bench
import mnist_runs
import run_ddp

NETS = [*run_ddp.STEPS, "mnist"]


def lockstep_ms(flags, net):
    if net == "mnist":
        return mnist_ms(flags, "gloo")
    return run_ddp.run(flags, 2, net, "--mode", "ddp", "--backend", "gloo")["ddp_seconds"] * 1e3


def pytorch_ms(flags, net):
    return mnist_ms(flags, None) if net == "mnist" else run_ddp.run_pytorch(flags, net)["ddp_seconds"] * 1e3


def mnist_ms(flags, backend):
    # The first epoch warms up.
    epoch = mnist_runs.train(flags, backend, 2, 2, [])[-1]
    return 2 * flags.batch_size / epoch["samples_per_second"] * 1e3


def main():
    parser = bench.recording_parser(__doc__, rounds=10)
    parser.add_argument("--nets", nargs="+", choices=NETS, default=NETS)
    mnist_runs.add_options(parser, steps=40)
    flags = parser.parse_args()
    mnist_runs.download(flags)
    sides = {f"{net}, {side.__name__}": lambda net=net, side=side: side(flags, net)
             for net in flags.nets for side in (pytorch_ms, lockstep_ms)}
    rounds = bench.interleave(sides, flags.rounds)
    results = {net: {"pytorch": rounds[f"{net}, pytorch_ms"], "lockstep": rounds[f"{net}, lockstep_ms"]}
               for net in flags.nets}
    rows = [[net, each["pytorch"], each["lockstep"], bench.ratio(each["pytorch"], each["lockstep"])] for net, each in results.items()]
    missed = [net for net, *_, ratio in rows if ratio < 0.98]
    table = bench.table("Milliseconds per step of two ranks, DDP over Gloo on both sides", ["net", "PyTorch", "Lockstep", "PyTorch / Lockstep"],
                        rows)
    bench.report(flags, results, {"gloo": [table]}, [f"Goal: at least 0.98 times as fast as PyTorch, missed by: {', '.join(missed) or 'none'}"])


if __name__ == "__main__":
    main()
