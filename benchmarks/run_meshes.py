#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Times steps of examples/gpt_mesh.cpp on all meshes of the cores of this host, and measures the memory that eight further layers
take, beside the estimates of `lockstep plan` from a machine file that it measures before."""
import json
import os
import statistics
import subprocess
import tempfile

import bench_support as bench

SIZES = {"layers": 4, "width": 256, "context": 64}
FEW, MANY = 5, 25  # steps of two runs, whose difference leaves out the start
LAYERS_MORE = 8  # of a second net, whose difference leaves out libraries and the backend
FORMS = ("replicas", "fully_shard shared")  # those of gpt_mesh


class Plans:
    """The estimates for all meshes."""

    def __init__(self, flags):
        self.flags, self.folder = flags, tempfile.TemporaryDirectory()
        self.machine = f"{self.folder.name}/machine.json"
        bench.finished([bench.program("lockstep"), "plan", "--measure", self.machine, "--nproc", str(flags.ranks)], flags.timeout)

    def choices(self, layers=SIZES["layers"], microbatches=None):
        command = [bench.program("lockstep"), "plan", "--gpt", f"{layers},{SIZES['width']},256,{SIZES['context']}", "--heads",
                   str(SIZES["width"] // 32), "--machine", self.machine, "--ranks", str(self.flags.ranks), "--batch-size",
                   str(self.flags.batch_size), "--json", "--top", "1000"]
        if microbatches:
            command += ["--microbatches", str(microbatches)]
        output = bench.finished(command, self.flags.timeout, stderr=None)
        return [choice for choice in json.loads(output) if choice["data_parallel"] in FORMS]

    def growth(self, choice):
        """Bytes of LAYERS_MORE further layers on all ranks, with the choice's micro-batches."""
        keys = ("dp", "pp", "cp", "tp", "data_parallel")
        more = self.choices(SIZES["layers"] + LAYERS_MORE, choice["microbatches"])
        larger = next(each for each in more if all(each[key] == choice[key] for key in keys))
        return larger["host_bytes"] - choice["host_bytes"]


def command_of(choice, steps, flags, layers=SIZES["layers"]):
    sizes = [word for name, value in (SIZES | {"layers": layers}).items() for word in (f"--{name}", str(value))]
    return [bench.program("lockstep"), "run", "--nproc-per-node", str(flags.ranks), bench.program("gpt_mesh"), "--mesh",
            f"{choice['dp']},{choice['pp']},{choice['tp']}", "--cp", str(choice["cp"]), "--text", str(bench.ROOT / "README.md"),
            "--steps", str(steps), "--batch-size", str(flags.batch_size), "--microbatches", str(choice["microbatches"]), *sizes,
            *(["--shard"] if choice["data_parallel"] != "replicas" else [])]


def step_seconds(choice, flags):
    def run(steps):
        return bench.wall_seconds(command_of(choice, steps, flags), flags.timeout)
    return (run(MANY) - run(FEW)) / (MANY - FEW)


def measured_growth(choice, flags):
    """Bytes of PSS that LAYERS_MORE further layers take on all ranks."""
    def run(layers):
        with subprocess.Popen(command_of(choice, FEW, flags, layers), stdout=subprocess.DEVNULL) as process:
            memory = bench.Pss(process)
            memory.start()
            try:
                process.wait(flags.timeout)
            except subprocess.TimeoutExpired:
                process.terminate()  # the launcher ends its ranks
                raise
            memory.join()
        if process.returncode:
            raise SystemExit(f"gpt_mesh ended with {process.returncode}")
        return memory.most * 2**20
    return run(SIZES["layers"] + LAYERS_MORE) - run(SIZES["layers"])


def main():
    parser = bench.recording_parser(__doc__, rounds=3)
    parser.add_argument("--ranks", type=int, default=len(os.sched_getaffinity(0)), help="ranks (default: cores)")
    parser.add_argument("--batch-size", type=int, default=64)
    flags = parser.parse_args()
    plans = Plans(flags)
    choices = {f"{each['dp']} x {each['pp']} x {each['cp']} x {each['tp']}, {each['data_parallel']}": each
               for each in plans.choices() if each["ep"] == 1}
    sides = {name: lambda each=each: step_seconds(each, flags) for name, each in choices.items()}
    seconds = {name: statistics.median(runs) for name, runs in bench.interleave(sides, flags.rounds).items()}
    rows = [{"mesh": name, "microbatches": each["microbatches"], "planned_seconds": each["step_seconds"],
             "measured_seconds": seconds[name], "planned_bytes": plans.growth(each), "measured_bytes": measured_growth(each, flags)}
            for name, each in choices.items()]
    lines = []
    for row in rows:
        mesh, _, form = row["mesh"].partition(", ")
        line = [mesh, form, row["microbatches"]]
        for kind, factor in (("seconds", 1e3), ("bytes", 2**-20)):
            planned, measured = row[f"planned_{kind}"], row[f"measured_{kind}"]
            line += [round(factor * planned), round(factor * measured), planned / measured]
        lines.append(line)
    table = bench.table(f"gpt_mesh on {flags.ranks} ranks",
                        ["data x pipeline x context x tensor", "data parallel", "micro-batches", "planned ms", "measured ms",
                         "planned / measured, time", "planned MiB", "measured MiB", "planned / measured, memory"], lines)
    bench.report(flags, rows, {"meshes": [table]})


if __name__ == "__main__":
    main()
