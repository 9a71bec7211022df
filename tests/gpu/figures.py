# SPDX-License-Identifier: BSD-3-Clause
"""Times of training on one GPU in C++ and in Python, in the same minutes."""
import json
import pathlib

TWIN = pathlib.Path(__file__).with_name("gpu_training.py")


class Net:
    """`items` and floating-point operations for each sample of a batch: forward and backward."""

    def __init__(self, batch, unit, items, operations, precision, more):
        self.batch, self.unit, self.items, self.operations, self.precision, self.more = batch, unit, items, operations, precision, more


def gpt(batch, vocabulary, length, width, layers):
    """6 for each weight of a matrix and token, and 12 * layers * length * width for attention (Chowdhery et al., 2022)."""
    weights = 12 * layers * width * width + vocabulary * width
    return Net(batch, "tokens", length, length * (6 * weights + 12 * layers * length * width), "bf16_weights", [])


# ResNet-50 with 224 x 224 pixels: 4.09e9 multiplications forward, and twice as many backward.
NETS = {"gpt500m": gpt(24, 50304, 1024, 1280, 22), "gpt125m": gpt(32, 50304, 1024, 768, 12),
        "resnet50": Net(256, "images", 1, 6 * 4.09e9, "bf16", ["--fast"])}
SMALL = {"gpt": gpt(1, 8192, 256, 512, 8), "resnet50": Net(1, "images", 1, 6 * 4.09e9, "bf16", ["--fast"])}

# Dense bf16 operations a second, by the card's data sheet. The first name that fits counts.
PEAKS = {"H100 PCIe": 756e12, "H100 NVL": 835e12, "H100": 989.4e12, "H200 NVL": 835e12, "H200": 989.4e12, "A100": 312e12}

# 85% of what a hand-written CUDA trainer reaches with a GPT of 0.5 billion on one H100.
GOALS = {"gpt500m": 0.85 * 149_000}


def command(flags, language, arguments):
    program = [flags.build / "bin/gpu_training"] if language == "C++" else [flags.python, TWIN]
    return [*program, *arguments]


def train(plan, flags, runs, seconds=120):
    """What the programs of `runs`, (language, arguments) each, found; they run at the same time."""
    results = []
    ended = plan.run_together([command(flags, *run) for run in runs], seconds)
    for (language, arguments), (output, problem) in zip(runs, ended):
        if problem:
            raise RuntimeError(f"{language} {' '.join(map(str, arguments))}: {problem}")
        results.append(json.loads(output.strip().splitlines()[-1]))
    return results


def seconds_of(plan, flags, language, *arguments):
    return train(plan, flags, [(language, arguments)])[0]["seconds"]


def graphs_beside_eager(plan, flags):
    """A step of MNIST. Python's DistributedDataParallel reduces with one rank as well and Lockstep's does not, so that
    Python's graph is without it."""
    report, seconds = plan.report, {}
    report.say("\n| | step of MNIST, batches of 128 | time |\n| --- | --- | --- |")
    ways = {"C++ graph": ["--mode", "graph"], "C++ eager": [], "Python graph": ["--mode", "graph", "--bare"], "Python eager": []}
    for way, arguments in ways.items():
        try:
            short = ["--warmup", 12, "--chunks", 1, "--steps", 2] if flags.small else []
            seconds[way] = seconds_of(plan, flags, way.split()[0], "--net", "mnist", *arguments, *short)
            report.say(f"| seen | {way} | {seconds[way] * 1e3:.3f} ms |")
        except RuntimeError as error:
            report.verdict(False, way, str(error))
    for theirs, goal in {"C++ eager": 1, "Python eager": 3, "Python graph": 1}.items():
        if not flags.small and theirs in seconds and "C++ graph" in seconds:
            ratio = seconds[theirs] / seconds["C++ graph"]
            # Two percent is within what two runs of the same program differ by.
            report.verdict(ratio >= 0.98 * goal, f"C++ graph beside {theirs}, at least {goal} x", f"{ratio:.2f} x")


def resident_and_loaded(plan, flags, language, mode):
    """Seconds of a step with a batch on the GPU, the mean of a run before and one after; the results with the loader."""
    arguments = ["--net", "mnist", "--mode", mode, *(["--bare"] if language == "Python" else [])]
    before = seconds_of(plan, flags, language, *arguments)
    loaded = train(plan, flags, [(language, [*arguments, "--data", "loader", "--chunks", 3])])[0]
    return (before + seconds_of(plan, flags, language, *arguments)) / 2, loaded


def describe(resident, loaded):
    return (f"{resident / loaded['seconds'] * 100:.1f}%, {loaded['seconds'] * 1e3:.3f} ms a step, of which the loop takes "
            f"{loaded['loading'] * 1e6:.0f} us for a batch")


def loader_beside_resident(plan, flags):
    """The time of a step whose batch is on the GPU, as a fraction of a step with batches from the loader; then what the
    loop's thread takes for a batch in eager steps, beside Python's DataLoader."""
    report = plan.report
    if flags.small:
        report.not_run("the loader keeps up", "says nothing with simulated GPUs")
        return
    try:
        for mode in ["graph", "eager"]:
            resident, loaded = resident_and_loaded(plan, flags, "C++", mode)
            report.verdict(resident / loaded["seconds"] > 0.95, f"the loader keeps up with {mode} steps of MNIST, 95%",
                           describe(resident, loaded))
        resident, theirs = resident_and_loaded(plan, flags, "Python", "eager")
        report.say(f"| seen | Python's loader and eager steps | {describe(resident, theirs)} |")
        ratio = theirs["loading"] / loaded["loading"]
        report.verdict(ratio >= 1, "the loop takes a batch as fast as Python's", f"{ratio:.1f} x as fast")
    except RuntimeError as error:
        report.verdict(False, "the loader keeps up", str(error))


# For each net; then those that take long to start.
WAYS = [("C++", "graph"), ("Python", "graph"), ("C++", "eager"), ("Python", "eager")]
LATER = [("gpt500m", "Python", "compile"), ("gpt125m", "Python", "compile"), ("resnet50", "Python", "compile")]


def peak_of(flags):
    return next((peak for name, peak in PEAKS.items() if name in flags.gpus[0]["name"]), None)


def throughput(plan, flags):
    """Items a second and percent of the card's peak, medians, one line after each run. All without
    DistributedDataParallel in Python."""
    report, peak, best = plan.report, peak_of(flags), {}
    nets = SMALL if flags.small else NETS
    report.say(f"Peak: {f'{peak / 1e12:.0f} TFLOP/s' if peak else 'not known for this card'}, dense bf16.\n")
    report.say("| | net, batch, precision | way | a second | step | of the peak |\n| --- | --- | --- | --- | --- | --- |")
    for name, language, mode in [(net, *way) for net in nets for way in WAYS] + (LATER if not flags.small else []):
        if name not in nets or name not in flags.nets or mode not in flags.modes:
            continue
        net = nets[name]
        length = ["--warmup", 12, "--chunks", 1, "--steps", 1] if flags.small else ["--warmup", 14, "--chunks", 5, "--steps", 5]
        label = f"{name}, {net.batch}, {net.precision}"
        try:
            seconds = seconds_of(plan, flags, language, "--net", name, "--batch-size", net.batch, "--precision", net.precision,
                                 "--mode", mode, *net.more, *length, *(["--bare"] if language == "Python" else []))
        except RuntimeError as error:
            if mode == "compile":  # needs Python's headers and a C compiler, which the machine may lack
                report.not_run(f"{label} | {language} {mode}", f"{str(error)[-300:]} | | ")
            else:
                report.verdict(False, f"{label} | {language} {mode}", f"{error} | | ")
            continue
        rate = net.batch * net.items / seconds
        part = f"{net.batch * net.operations / seconds / peak * 100:.1f}%" if peak else "-"
        report.say(f"| seen | {label} | {language} {mode} | {rate:,.0f} {net.unit} | {seconds * 1e3:.1f} ms | {part} |")
        best[name, language] = max(rate, best.get((name, language), 0))
        if name in GOALS and peak and (language, mode) == ("C++", "graph"):
            report.verdict(rate >= GOALS[name], f"{name}: at least {GOALS[name]:,.0f} tokens a second", f"| {rate:,.0f} | | ")
    return ", ".join(f"{name} {best[name, 'C++'] / best[name, 'Python']:.2f} x Python's best" for name in nets
                     if (name, "C++") in best and (name, "Python") in best)
