# SPDX-License-Identifier: BSD-3-Clause
"""The plan of scripts/gpu_check.sh: builds, and runs the checks that need a GPU, in parts that are ordered by worth and
have time limits, for one report. scripts/cuda_build_check.sh runs parts with simulated GPUs. Standard library only: the
programs that it starts need torch."""
import argparse
import datetime
import json
import os
import pathlib
import platform
import re
import resource
import shutil
import signal
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import figures  # noqa: E402
from plan import Part, Plan, Report, run_part  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
MIXED = ROOT / "tests/parity/mixed_jobs.py"

PROBE = """
import json, torch
import torch.cuda.nccl
gpus = [{"name": p.name, "capability": f"{p.major}.{p.minor}", "memory": p.total_memory >> 20, "multiprocessors": p.multi_processor_count}
        for p in map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))]
print(json.dumps({"torch": torch.__version__, "cuda": torch.version.cuda, "gpus": gpus,
                  "nccl": ".".join(map(str, torch.cuda.nccl.version()))}))
"""


def head(plan, flags):
    """What Python's torch sees. Sets flags.gpus."""
    report = plan.report
    report.say(f"## {datetime.date.today()}: {', '.join(flags.parts)}\n")
    output, problem = plan.run([flags.python, "-c", PROBE], 60)
    flags.gpus = []
    if problem:
        report.verdict(False, "torch", problem)
    else:
        seen = json.loads(output.strip().splitlines()[-1])
        flags.gpus = seen["gpus"]
        report.say(f"torch {seen['torch']}, CUDA {seen['cuda']}, NCCL {seen['nccl']}, Python {platform.python_version()}, "
                   f"{os.cpu_count()} cores, GPUs: {'; '.join(g['name'] for g in flags.gpus) or 'none'}")
    report.say()
    if not problem and not flags.gpus and flags.parts != ["build"]:
        report.verdict(False, "GPU", "torch sees none")
        report.say()


def processor_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def build(plan, flags):
    """Every program that can be built is, and the compiler's errors of the others are in the report."""
    report, before = plan.report, processor_seconds()
    print("The build shows nothing until it ends.", flush=True)
    output, problem = plan.run(["bash", ROOT / "scripts/gpu_check.sh", "--compile"], plan.left())
    seconds = processor_seconds() - before
    if problem:
        report.verdict(False, "build", problem.split(":")[0])
        shown = [line for line in output.splitlines() if re.search(r"(\berror\b|^FAILED|Error|undefined reference)", line)]
        report.say("\n".join(["```", *(line[:300] for line in (shown or output.splitlines())[-25:]), "```"]))
    steps = {}
    for line in (flags.build / ".ninja_log").read_text().splitlines()[1:]:
        start, end, _, target, *_ = line.split("\t")
        steps[pathlib.Path(target).relative_to(ROOT / flags.build) if target.startswith("/") else target] = (int(end) - int(start)) / 1000
    longest = sorted(steps.items(), key=lambda step: -step[1])[:4]
    report.say("Longest steps: " + ", ".join(f"{target} {taken:.0f} s" for target, taken in longest))
    return f"{seconds:.0f} s of processor time, {len(steps)} steps"


def devices(plan, flags):
    report = plan.report
    report.say("| | device | what is seen |\n| --- | --- | --- |")
    if shutil.which("nvidia-smi"):
        output, problem = plan.run(["nvidia-smi", "--format=csv,noheader", "--query-gpu=name,driver_version,memory.total,"
                                    "clocks.max.sm,power.limit,compute_mode,mig.mode.current"], 20)
        report.verdict(problem is None, "nvidia-smi", problem or " / ".join(output.strip().splitlines()))
    else:
        report.not_run("nvidia-smi", "it is not there")
    for i, gpu in enumerate(flags.gpus):
        report.say(f"| seen | {i} | {gpu['name']}, capability {gpu['capability']}, {gpu['memory']} MiB, "
                   f"{gpu['multiprocessors']} multiprocessors |")
    run_checks(plan, flags, ["devices"])
    return "; ".join(gpu["name"] for gpu in flags.gpus)


# The part in which a check runs; those of one rank run in "nccl".
def part_of(check):
    if check["gpus"] > 1:
        return "two_gpus"
    if check["program"].name == "parallel_checks":
        return "parallel"
    for part, prefixes in {"graphs": ("graph",), "loader": ("loader",), "devices": ("devices",),
                           "shared": ("shared", "sharing", "nccl_sharing")}.items():
        if check["name"].startswith(prefixes):
            return part
    return "nccl"


def checks_of(plan, flags, parts):
    """A program that was not built fails its own parts only."""
    found = []
    programs = {"parallel": ["parallel_checks"], "two_gpus": ["gpu_checks", "parallel_checks"]}
    for program in sorted({program for part in parts for program in programs.get(part, ["gpu_checks"])}):
        path = flags.build / "bin" / program
        if not path.exists():
            raise RuntimeError(f"{path} was not built")
        output, problem = plan.run([path, "list"], 30)
        if problem:
            raise RuntimeError(f"{path} list: {problem}")
        for line in output.splitlines():
            name, ranks, gpus, what = line.split(" ", 3)
            found.append({"program": path, "name": name, "ranks": int(ranks), "gpus": int(gpus), "what": what})
    # The one that lets the GPU sleep until a timeout comes last.
    return sorted(found, key=lambda check: check["name"] == "hang")


def run_checks(plan, flags, parts):
    for check in checks_of(plan, flags, parts):
        name = check["name"]
        if part_of(check) not in parts or flags.only and name not in flags.only:
            continue
        begin = time.monotonic()
        # Ranks that share a GPU are to see one only.
        one = {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]} if check["gpus"] == 1 else {}
        output, problem = plan.run([flags.build / "bin/lockstep", "run", "--nproc-per-node", check["ranks"],
                                    check["program"], name], 90, one)
        said = " ".join(output.split())[:200]
        plan.report.verdict(problem is None, name,
                            problem or f"{check['what']}{': ' + said if said else ''} ({time.monotonic() - begin:.1f} s)")


def checks(*parts):
    def action(plan, flags):
        plan.report.say("| | check | what is seen |\n| --- | --- | --- |")
        run_checks(plan, flags, parts)
    return action


def parity(plan, flags):
    """The same steps in C++ and in Python, at the same time on the same GPU."""
    report = plan.report
    report.say("| | losses in Python and C++ | |\n| --- | --- | --- |")
    sizes = {"mnist": 16, "resnet50": 1, "gpt": 1} if flags.small else {"mnist": 64, "resnet50": 8, "gpt": 4}
    for net, size in sizes.items():
        if net not in flags.nets:
            continue
        arguments = ["--net", net, "--batch-size", size, "--deterministic", "--warmup", flags.steps, "--chunks", 1, "--steps", 1]
        try:
            ours, theirs = (run["losses"] for run in figures.train(plan, flags, [("C++", arguments), ("Python", arguments)]))
        except RuntimeError as error:
            report.verdict(False, net, str(error))
            continue
        equal = [float.fromhex(a) == float.fromhex(b) for a, b in zip(ours, theirs)]
        last = f"last {float.fromhex(ours[-1]):.6f} and {float.fromhex(theirs[-1]):.6f}"
        report.verdict(all(equal) and len(ours) == len(theirs), net, f"{sum(equal)} of {len(equal)} equal to the last bit; {last}")


def graphs(plan, flags):
    checks("graphs")(plan, flags)
    figures.graphs_beside_eager(plan, flags)


def loader(plan, flags):
    checks("loader")(plan, flags)
    figures.loader_beside_resident(plan, flags)


def two_gpus(plan, flags):
    checks("two_gpus")(plan, flags)
    _, problem = plan.run([flags.python, MIXED, flags.build / "bin/mixed_jobs", "nccl"], 300)
    plan.report.verdict(problem is None, "mixed", problem or "C++ and Python ranks in one job over nccl: every mixture has the "
                        "bits of two Python ranks")


# In order of worth. On one GPU: 300 s to build, and 9 minutes for the others.
PARTS = [
    Part("build", 300, build, least=60),
    Part("devices", 20, devices, needs=1),
    Part("nccl", 75, checks("nccl"), needs=1),
    Part("parity", 90, parity, least=20, needs=1),
    Part("shared", 60, checks("shared"), needs=1),
    Part("graphs", 75, graphs, needs=1),
    Part("loader", 60, loader, needs=1),
    Part("parallel", 60, checks("parallel"), needs=1),
    Part("figures", 180, figures.throughput, least=25, needs=1),
    Part("two_gpus", 400, two_gpus, least=30, needs=2),
]
NAMES = [part.name for part in PARTS]


def parse():
    parser = argparse.ArgumentParser(prog="scripts/gpu_check.sh", description=__doc__)
    parser.add_argument("--parts", nargs="+", default=NAMES, help=f"of {', '.join(NAMES)}; default: all")
    parser.add_argument("--limit", type=float, default=3600,
                        help="seconds for all parts together; a part that does not fit any more is not run")
    parser.add_argument("--stretch", type=float, default=1, help="on a slow machine: multiplies every limit but that of --limit")
    parser.add_argument("--report", type=pathlib.Path, default=ROOT / "build/gpu_report.md",
                        help="lines are added to it; what the programs wrote goes to the .log beside it")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/gpu", help="the build folder")
    parser.add_argument("--python", default=sys.executable, help="whose torch is the LibTorch of the build")
    parser.add_argument("--only", nargs="+", help="names of checks")
    parser.add_argument("--nets", nargs="+", default=[*figures.NETS, "mnist", "gpt"], help="of parity and figures")
    parser.add_argument("--modes", nargs="+", default=["graph", "eager", "compile"], help="of figures")
    parser.add_argument("--steps", type=int, default=20, help="of parity")
    parser.add_argument("--small", action="store_true", help="figures of small nets, few steps: for simulated GPUs")
    flags = parser.parse_args()
    flags.parts = [name for text in flags.parts for name in text.split(",")]
    unknown = set(flags.parts) - set(NAMES)
    if unknown:
        parser.error(f"there is no part {', '.join(sorted(unknown))}; the parts are {', '.join(NAMES)}")
    return flags


def main():
    flags = parse()
    report = Report(flags.report)
    plan = Plan(report, flags.report.with_suffix(".log"), flags.limit, flags.stretch)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    head(plan, flags)
    rows = []
    for part in PARTS:
        if part.name not in flags.parts:
            continue
        if part.needs and len(flags.gpus) < part.needs:
            rows.append(f"| not run | {part.name} | | needs {part.needs} GPU{'s' * (part.needs > 1)}, and torch sees {len(flags.gpus) or 'none'} |")
            report.say(rows[-1] + "\n")
        else:
            rows.append(run_part(plan, part, flags))
    report.say("### Result\n\n| | part | time | what was seen |\n| --- | --- | --- | --- |")
    for row in rows:
        report.say(row)
    report.say(f"\n{report.failed} failed." if report.failed else "\nNothing failed.")
    sys.exit(1 if report.failed else 0)


if __name__ == "__main__":
    main()
