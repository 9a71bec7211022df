# SPDX-License-Identifier: BSD-3-Clause
"""Shared code of the run_*.py scripts. Standard library only."""
import argparse
import datetime
import json
import os
import pathlib
import platform
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import threading
import time

import records

ROOT = pathlib.Path(__file__).resolve().parent.parent
# scripts/bench.sh sets both.
BUILD = pathlib.Path(os.environ.get("LOCKSTEP_BUILD_DIR", ROOT / "build" / "release"))
PYTHON = os.environ.get("LOCKSTEP_PYTHON", sys.executable)


def program(name):
    path = BUILD / "bin" / name
    if not path.exists():
        sys.exit(f"{path} is not built: run this through scripts/bench.sh, or set LOCKSTEP_BUILD_DIR")
    return str(path)


def benchmark(name):
    """The command of a benchmark. In builds of older commits each is a program."""
    is_old = not (BUILD / "bin" / "benchmark").exists() and (BUILD / "bin" / name).exists()
    return [program(name)] if is_old else [program("benchmark"), name]


def cores(count):
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < count:
        sys.exit(f"this benchmark needs {count} cores; this process may use {len(usable)}")
    return usable[:count]


def pinned(command):
    """The command of one rank, bound to its core of $CORES."""
    script = 'exec taskset -c "$(echo $CORES | cut -d " " -f $((LOCAL_RANK + 1)))" "$@"'
    return ["sh", "-c", script, "sh", *command]


def parser(description, rounds, timeout=600):
    """An argument parser with the options that every benchmark has."""
    options = argparse.ArgumentParser(description=description)
    options.add_argument("--rounds", type=int, default=rounds, help=f"slices of each side (default {rounds})")
    options.add_argument("--timeout", type=int, default=timeout, help="seconds that one slice may take")
    options.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    return options


def recording_parser(description, rounds, timeout=600):
    """As parser(), for a benchmark that ends with report()."""
    options = parser(description, rounds, timeout)
    options.add_argument("--record", action="store_true", help="write the tables to benchmarks/results as a run, too")
    return options


START = time.monotonic()
START_DATE = datetime.datetime.now(datetime.timezone.utc)
START_LOAD = os.getloadavg()[0]


def progress(text):
    print(f"[{time.monotonic() - START:5.0f} s] {text}", file=sys.stderr, flush=True)


def interleave(sides, rounds):
    """Runs each side (name: function) once per round and returns {name: results}. Every other round runs in reverse
    order, so that a drift of the machine affects all sides alike. Prints a line on stderr before each slice."""
    results = {name: [] for name in sides}
    for number in range(rounds):
        for name in list(sides)[::-1 if number % 2 else 1]:
            progress(f"round {number + 1} of {rounds}: {name}")
            results[name].append(sides[name]())
    return results


def of_rounds(rounds, key, factor=1):
    """The figure of each round."""
    return [factor * each[key] for each in rounds]


def ratio(rounds, other):
    """The ratio of the medians."""
    return statistics.median(rounds) / statistics.median(other)


def table(title, columns, rows):
    """A table of a run; records.py describes it."""
    return {"title": title, "columns": list(columns), "rows": [list(map(records.rounded, row)) for row in rows]}


def report(flags, results, tables, goals=()):
    """Prints the results with --json, otherwise the tables ({topic: tables}) and the lines about goals. --record writes a run of each
    topic."""
    if flags.json:
        print(json.dumps(results))
    else:
        for each in (each for of_topic in tables.values() for each in of_topic):
            print("\n".join([each["title"], "", *records.markdown(*records.texts_of(each)), ""]))
        print("\n".join(goals))
    for topic, of_topic in tables.items() if flags.record else ():
        progress(f"wrote {records.write(run_of(topic, flags.rounds, of_topic), records.RESULTS)}: now run python3 benchmarks/make_page.py")


def run_of(topic, rounds, tables):
    name = pathlib.Path(sys.argv[0]).stem.removeprefix("run_")
    command = ["scripts/bench.sh", name, *(word for word in sys.argv[1:] if word not in ("--record", "--json"))]
    return {"topic": topic, "date": f"{START_DATE:%Y-%m-%d %H:%M}", "commit": commit(),
            "processor": f"{processor()}, {len(os.sched_getaffinity(0))} cores", "libtorch": libtorch(), "command": shlex.join(command),
            "rounds": rounds, "conditions": f"load {START_LOAD:.1f} at the start", "compared_with": None, "tables": tables}


def commit():
    """The commit of the working tree, with "-dirty" where it has changes; None outside a repository or without git."""
    if shutil.which("git") is None:
        return None
    described = subprocess.run(["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=7", "--exclude=*"], capture_output=True,
                               text=True)
    return described.stdout.strip() or None


def processor():
    models = re.findall(r"^model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    return models[0] if models else platform.machine()


def libtorch():
    """The version of the build's LibTorch; None where it cannot be found."""
    def found(pattern, path):
        return re.search(pattern, path.read_text(encoding="utf-8")) if path.exists() else None

    folder = found(r"Torch_DIR:\w+=(.*)", BUILD / "CMakeCache.txt")
    version = folder and found(r'PACKAGE_VERSION "([\d.]+)', pathlib.Path(folder[1]) / "TorchConfigVersion.cmake")
    return version and version[1]


def objects(output):
    """The JSON objects among the lines, which a launcher may prefix with the rank."""
    return [json.loads(line[line.index("{"):]) for line in output.splitlines() if line.endswith("}") and "{" in line]


def twin(name):
    """The command of a Python counterpart."""
    return [PYTHON, str(ROOT / "benchmarks" / "pytorch" / f"{name}.py")]


def run_pinned(command, threads, timeout, pinned_cores=None):
    """Runs one process with `threads` threads on as many cores, or on `pinned_cores`; returns its JSON objects."""
    own_cores = ",".join(map(str, cores(pinned_cores or threads)))
    return objects(finished(["taskset", "-c", own_cores, *command], timeout,
                            os.environ | {"OMP_NUM_THREADS": str(threads)}))


def launch(launcher, command, world_size, timeout):
    """Runs `world_size` ranks under "torchrun" or "lockstep run", each with one thread and its own core. Returns their
    JSON objects. Ends the script with their output when they fail or time out."""
    start = {"torchrun": [PYTHON, "-m", "torch.distributed.run", "--standalone", "--no-python"],
             "lockstep run": [program("lockstep"), "run"]}[launcher]
    whole = [*start, "--nproc-per-node", str(world_size), *pinned(command)]
    return objects(finished(whole, timeout, rank_environment(world_size)))


def rank_environment(world_size):
    """The environment of the launcher of pinned() ranks with one thread each."""
    return os.environ | {"OMP_NUM_THREADS": "1", "CORES": " ".join(map(str, cores(world_size)))}


def finished(command, timeout, environment=None, stderr=subprocess.STDOUT):
    """Runs the command and returns its output (with stderr=None only stdout; stderr goes to the user). Ends the script with
    the output when the command fails or times out."""
    with subprocess.Popen(command, env=environment, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=stderr) as process:
        try:
            output = process.communicate(timeout=timeout)[0]
        except subprocess.TimeoutExpired:
            process.terminate()  # launchers end their ranks
            sys.exit(f"{' '.join(command)}: not finished after {timeout} s\n{process.communicate()[0]}")
    if process.returncode:
        sys.exit(f"{' '.join(command)}: ended with {process.returncode}\n{output}")
    return output


def wall_seconds(command, timeout):
    start = time.perf_counter()
    finished(command, timeout)
    return time.perf_counter() - start


class Pss(threading.Thread):
    """The largest sum of PSS over a process and its descendants, in MiB, sampled while it runs."""

    def __init__(self, root):
        super().__init__(daemon=True)
        self.root, self.most = root, 0

    def run(self):
        while self.root.poll() is None:
            self.most = max(self.most, sum(map(self.pss_of, self.family())) / 1024)
            time.sleep(0.2)

    def family(self):
        family, new = [], [self.root.pid]
        while new:
            family += new
            new = [int(child) for pid in new for child in self.children(pid)]
        return family

    @staticmethod
    def children(pid):
        try:
            return pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except OSError:
            return []

    @staticmethod
    def pss_of(pid):
        try:
            text = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            return 0
        return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")), 0)


def goal(ratio, limit):
    return f"{ratio:.3f} (goal: at most {limit}, {'met' if ratio <= limit else 'missed'})"
