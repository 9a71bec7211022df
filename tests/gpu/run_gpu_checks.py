# SPDX-License-Identifier: BSD-3-Clause
"""Runs the checks that need a GPU, in parts, and writes one report: scripts/gpu_check.sh calls it, and
scripts/cuda_build_check.sh with simulated GPUs. Standard library and torch only."""
import argparse
import datetime
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
TWIN = pathlib.Path(__file__).with_name("gpu_training.py")
MIXED = ROOT / "tests/parity/mixed_jobs.py"


class Report:
    """Writes lines to the terminal and to a file; counts failures."""

    def __init__(self, path):
        self.path, self.failed = path, 0
        path.parent.mkdir(parents=True, exist_ok=True)

    def say(self, line=""):
        """Writes to the file immediately, so that no result is lost at the time limit."""
        print(line, flush=True)
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(line + "\n")

    def verdict(self, passed, name, text):
        self.failed += not passed
        self.say(f"| {'passed' if passed else '**FAILED**'} | {name} | {text} |")


def run(log, command, timeout, environment=None):
    """(output, None) or (output, reason of the failure). The output also goes into the log."""
    problem = None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL,
                              env=os.environ | (environment or {}))
        output, errors = done.stdout, done.stderr
        if done.returncode:
            problem = f"ended with {done.returncode}"
    except subprocess.TimeoutExpired as expired:
        output, errors = ((text or b"").decode(errors="replace") for text in (expired.stdout, expired.stderr))
        problem = f"not finished after {timeout} s"
    with open(log, "a", encoding="utf-8") as file:
        file.write(f"$ {' '.join(map(str, command))}\n{output}{errors}\n")
    return output, problem and f"{problem}: " + " / ".join(errors.strip().splitlines()[-12:])


def head(report, flags):
    import torch
    report.say(f"## {datetime.date.today()}: {', '.join(flags.part)}")
    report.say()
    report.say(f"torch {torch.__version__}, CUDA {torch.version.cuda}, "
               f"{torch.cuda.get_device_name(0) if torch.cuda.is_available() else 'no GPU'}, "
               f"NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}, Python {platform.python_version()}")
    report.say()


def run_checks(report, flags):
    import torch
    program, launcher = flags.build / "bin/gpu_checks", flags.build / "bin/lockstep"
    report.say("| | check | what is seen |\n| --- | --- | --- |")
    for line in subprocess.run([program, "list"], capture_output=True, text=True, check=True).stdout.splitlines():
        name, ranks, gpus, what = line.split(" ", 3)
        if flags.only and name not in flags.only:
            continue
        if int(gpus) > torch.cuda.device_count():
            report.say(f"| not run | {name} | {what}: takes {gpus} GPUs |")
            continue
        begin = time.perf_counter()
        # Ranks that share a GPU are to see one only.
        one = {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]} if gpus == "1" else {}
        _, problem = run(flags.log, [launcher, "run", "--nproc-per-node", ranks, program, name], 90, one)
        report.verdict(problem is None, name, problem or f"{what} ({time.perf_counter() - begin:.1f} s)")
    report.say()


def train(flags, language, *arguments, timeout=200):
    command = [str(flags.build / "bin/gpu_training")] if language == "C++" else [flags.python, str(TWIN)]
    output, problem = run(flags.log, [*command, *map(str, arguments)], timeout)
    if problem:
        raise RuntimeError(f"{language} {' '.join(map(str, arguments))}: {problem}")
    return json.loads(output.strip().splitlines()[-1])


def run_parity(report, flags):
    report.say("| | losses in Python and C++ | |\n| --- | --- | --- |")
    sizes = {"mnist": 64, "resnet50": 8, "gpt": 4}
    for net in flags.parity_nets:
        arguments = ["--net", net, "--batch-size", sizes[net], "--deterministic", "--warmup", flags.steps,
                     "--chunks", 1, "--steps", 1]
        try:
            ours = train(flags, "C++", *arguments)["losses"]
            theirs = train(flags, "Python", *arguments)["losses"]
        except RuntimeError as error:
            report.verdict(False, net, str(error))
            continue
        equal = [float.fromhex(a) == float.fromhex(b) for a, b in zip(ours, theirs)]
        last = f"last {float.fromhex(ours[-1]):.6f} and {float.fromhex(theirs[-1]):.6f}"
        report.verdict(all(equal) and len(ours) == len(theirs), net,
                       f"{sum(equal)} of {len(equal)} equal to the last bit; {last}")
    report.say()


def run_mixed(report, flags):
    import torch
    report.say("| | C++ and Python ranks in one job over nccl | |\n| --- | --- | --- |")
    if torch.cuda.device_count() < 2:
        report.say("| not run | mixed | takes 2 GPUs |")
    else:
        _, problem = run(flags.log, [flags.python, str(MIXED), str(flags.build / "bin/mixed_jobs"), "nccl"], 300)
        report.verdict(problem is None, "mixed", problem or "every mixture has the bits of two Python ranks")
    report.say()


# Language, mode, arguments. Python's DistributedDataParallel reduces with one rank as well and Lockstep's does not, so
# that Python without it is shown, too, and is what a graphed step is measured by.
WAYS = {"Python eager": ("Python", "eager", []), "Python compile": ("Python", "compile", []),
        "Python graph": ("Python", "graph", []), "Python eager, no DDP": ("Python", "eager", ["--bare"]),
        "Python graph, no DDP": ("Python", "graph", ["--bare"]),
        "C++ eager": ("C++", "eager", []), "C++ graph": ("C++", "graph", [])}


def run_benchmark(report, flags):
    """Medians over rounds that alternate between all variants."""
    nets = {"mnist": (128, "fp32"), "gpt": (8, "bf16"), "resnet50": (64, "bf16")}
    for net, (size, precision) in nets.items():
        if net not in flags.nets:
            continue
        times = {way: [] for way in WAYS}
        for _ in range(flags.rounds):
            for way, (language, mode, more) in WAYS.items():
                try:
                    times[way].append(train(flags, language, "--net", net, "--batch-size", size, "--precision", precision,
                                            "--mode", mode, *more)["seconds"])
                except RuntimeError as error:
                    report.verdict(False, f"{net} {way}", str(error))
        medians = {way: statistics.median(seconds) for way, seconds in times.items() if seconds}
        report.say("| net | way | step | beside Python eager |\n| --- | --- | --- | --- |")
        for way, median in medians.items():
            ratio = f"{medians['Python eager'] / median:.2f} x" if "Python eager" in medians else ""
            report.say(f"| {net}, {size}, {precision} | {way} | {median * 1e3:.3f} ms | {ratio} |")
        report.say()
        judge(report, net, medians)
    if "mnist" in flags.nets:
        loader(report, flags)


def judge(report, judged, medians):
    goals = [("graphed beside Python eager, at least 3", "mnist", "Python eager", "C++ graph", 3.0),
             ("graphed beside Python graphed, at least 1", "mnist", "Python graph, no DDP", "C++ graph", 1.0),
             ("graphed beside Python graphed, at least 1", "gpt", "Python graph, no DDP", "C++ graph", 1.0),
             ("eager beside Python eager, at least 1", "resnet50", "Python eager", "C++ eager", 1.0)]
    report.say("| | goal | measured |\n| --- | --- | --- |")
    for text, net, theirs, ours, goal in goals:
        if net == judged and theirs in medians and ours in medians:
            ratio = medians[theirs] / medians[ours]
            # Two percent is within what two runs of the same program differ by.
            report.verdict(ratio >= 0.98 * goal, f"{net} {text}", f"{ratio:.2f}")
    report.say()


def loader(report, flags):
    """The time of a step whose batch is on the GPU, as a fraction of a step with batches from the loader."""
    for mode in ["graph", "eager"]:
        try:
            resident = train(flags, "C++", "--net", "mnist", "--mode", mode)["seconds"]
            loaded = train(flags, "C++", "--net", "mnist", "--mode", mode, "--data", "loader", "--chunks", 3)["seconds"]
            report.verdict(resident / loaded > 0.95, f"the loader keeps up with {mode} steps of MNIST, 95%",
                           f"{resident / loaded * 100:.1f}%, {loaded * 1e3:.3f} ms a step")
        except RuntimeError as error:
            report.verdict(False, f"loader, {mode}", str(error))
    report.say()


PARTS = {"checks": run_checks, "parity": run_parity, "mixed": run_mixed, "benchmark": run_benchmark}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path, required=True, help="the build folder")
    parser.add_argument("--python", default=sys.executable, help="whose torch is the LibTorch of the build")
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--only", nargs="+", help="names of checks")
    parser.add_argument("--nets", nargs="+", choices=["mnist", "gpt", "resnet50"], default=["mnist", "gpt", "resnet50"],
                        help="of the benchmark, to split it")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--parity-nets", nargs="+", choices=["mnist", "gpt", "resnet50"],
                        default=["mnist", "resnet50", "gpt"])
    parser.add_argument("--steps", type=int, default=20, help="of parity")
    parser.add_argument("--report", type=pathlib.Path, default=ROOT / "build/gpu_report.md", help="lines are added to it")
    flags = parser.parse_args()
    report = Report(flags.report)
    flags.log = flags.report.with_suffix(".log")
    head(report, flags)
    for part in flags.part:
        PARTS[part](report, flags)
    report.say(f"{report.failed} failed" if report.failed else "All passed.")
    sys.exit(1 if report.failed else 0)


if __name__ == "__main__":
    main()
