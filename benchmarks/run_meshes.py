#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Times steps of examples/gpt_mesh.cpp on all meshes of the cores of this host, beside the estimates of `lockstep plan` from a
machine file that it measures before."""
import json
import os
import statistics
import tempfile

import bench_support as bench

SIZES = {"layers": 4, "width": 256, "context": 64}
FEW, MANY = 5, 25  # steps of two runs, whose difference leaves out the start


def planned(ranks, batch_size, timeout):
    with tempfile.TemporaryDirectory() as folder:
        machine = f"{folder}/machine.json"
        lockstep = bench.program("lockstep")
        bench.finished([lockstep, "plan", "--measure", machine, "--nproc", str(ranks)], timeout)
        sizes = f"{SIZES['layers']},{SIZES['width']},256,{SIZES['context']}"
        output = bench.finished([lockstep, "plan", "--gpt", sizes, "--heads", str(SIZES["width"] // 32), "--machine", machine,
                                 "--ranks", str(ranks), "--batch-size", str(batch_size), "--json", "--top", "1000"],
                                timeout, stderr=None)
    return [choice for choice in json.loads(output) if choice["data_parallel"] == "replicas"]


def step_seconds(choice, ranks, batch_size, timeout):
    def run(steps):
        arguments = [word for name, value in SIZES.items() for word in (f"--{name}", str(value))]
        mesh = f"{choice['dp']},{choice['pp']},{choice['tp']}"
        program = [bench.program("gpt_mesh"), "--mesh", mesh, "--cp", str(choice["cp"]), "--text", str(bench.ROOT / "README.md")]
        return bench.wall_seconds(
            [bench.program("lockstep"), "run", "--nproc-per-node", str(ranks), *program, "--steps", str(steps), "--batch-size",
             str(batch_size), "--microbatches", str(choice["microbatches"]), *arguments], timeout)
    return (run(MANY) - run(FEW)) / (MANY - FEW)


def main():
    parser = bench.parser(__doc__, rounds=3)
    parser.add_argument("--ranks", type=int, default=len(os.sched_getaffinity(0)), help="ranks (default: cores)")
    parser.add_argument("--batch-size", type=int, default=64)
    flags = parser.parse_args()
    choices = planned(flags.ranks, flags.batch_size, flags.timeout)
    sides = {f"{each['dp']} x {each['pp']} x {each['cp']} x {each['tp']}":
             lambda each=each: step_seconds(each, flags.ranks, flags.batch_size, flags.timeout) for each in choices}
    measured = {name: statistics.median(runs) for name, runs in bench.interleave(sides, flags.rounds).items()}
    rows = [{"mesh": name, "microbatches": each["microbatches"], "planned_seconds": each["step_seconds"],
             "measured_seconds": measured[name]} for name, each in zip(sides, choices, strict=True)]
    if flags.json:
        print(json.dumps(rows))
        return
    print("| data x pipeline x context x tensor | micro-batches | planned ms | measured ms | planned / measured |\n|---|---|---|---|---|")
    for row in rows:
        print(f"| {row['mesh']} | {row['microbatches']} | {1e3 * row['planned_seconds']:.0f} | "
              f"{1e3 * row['measured_seconds']:.0f} | {row['planned_seconds'] / row['measured_seconds']:.2f} |")


if __name__ == "__main__":
    main()
