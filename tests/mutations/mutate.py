#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Breaks random lines of src/ and runs the tests of their layers: how many of the broken lines do they notice?

    mutate.py <tree> <build> [--seed N] [--count 200] [--within src/foundation/base,src/kit] [--results FILE] [--jobs 2] [--floor 0.85]

<tree> is a copy of the project whose sources this script may change, such as a git worktree; <build> is its build folder, with
tests. All mutants are compiled into one build, each behind a switch that an environment variable turns on (mutant.h). Every test of
the layers runs once without a mutant, which shows which mutants it reaches. Then each mutant runs the tests that reach it, the
shortest first, until one fails.

The results are lines of JSON: the settings, then a line for each mutant. A run with the same settings and sources continues the
last one. The exit status is 1 if fewer mutants than the floor are noticed, or if a test fails without a mutant."""

import argparse
import concurrent.futures
import hashlib
import json
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

import layers
import scratch
import trials
from candidates import candidates

NOTICED = ("killed", "timeout")
SPARE = 1.6  # drawn for each one wanted, because some do not compile


class Mutant(NamedTuple):
    number: int
    file: str
    line: int
    kind: str
    start: int
    end: int
    before: str
    after: str
    code: str

    @property
    def layer(self):
        return self.file.split("/")[2]

    def text(self):
        after = " ".join(self.after.split()) or "removed"
        return f"{self.file}:{self.line}: {self.kind}: {' '.join(self.before.split())} -> {after}"


def sources(tree, within=("src/",), left_out=()):
    """{file: text} of what begins with one of `within`, but with none of `left_out`."""
    found = {}
    for path in sorted((tree / "src").glob("*/*/**/*")):
        name = path.relative_to(tree).as_posix()
        if path.suffix in (".cpp", ".h") and name.startswith(tuple(within)) and not name.startswith(left_out):
            found[name] = path.read_text()
    return found


def draw(originals, seed, count):
    """Random lines that have candidates, each with a random one of them. Every line is as likely as any other."""
    rows = {}
    for name, text in originals.items():
        for each in candidates(text):
            rows.setdefault((name, each.line), []).append(each)
    order = sorted(rows)
    source = random.Random(seed)
    source.shuffle(order)
    drawn = []
    for name, line in order:
        each = source.choice(rows[name, line])
        if any(other.file == name and each.start < other.end and other.start < each.end for other in drawn):
            continue
        drawn.append(Mutant(len(drawn) + 1, name, line, each.kind, each.start, each.end, each.before, each.after, each.code))
        if len(drawn) == count:
            break
    return drawn


class Results:
    """The file of results. Threads may add to it."""

    def __init__(self, path, settings):
        self.path, self.lock, self.lines = path, threading.Lock(), {}
        if path.exists():
            head, *rest = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")] or [None]
            if head != settings:
                raise SystemExit(f"{path} has results of other settings or sources ({head}); remove it, or name another file with --results")
            self.lines = {line["number"]: line for line in rest}
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(settings) + "\n")

    def add(self, mutant, commit, **values):
        line = {"number": mutant.number, "file": mutant.file, "line": mutant.line, "kind": mutant.kind, "before": mutant.before, "after": mutant.after,
                "commit": commit, **values}
        with self.lock:
            self.lines[mutant.number] = line
            with self.path.open("a") as file:
                file.write(json.dumps(line) + "\n")

    def verdict(self, mutant):
        return self.lines.get(mutant.number, {}).get("verdict")


def commit_of(tree):
    try:
        done = subprocess.run(["git", "-C", str(tree), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    except FileNotFoundError:  # git is not installed
        return "unknown"
    return done.stdout.strip() or "unknown"


def map_in_threads(function, items, jobs):
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(function, items)


def first_runs(tests, jobs):
    """The tests with what they reach, and the names of those that fail without a mutant."""
    passed, failed = [], []
    for test, result in zip(tests, map_in_threads(trials.without_mutant, tests, jobs)):
        if isinstance(result, trials.Outcome):
            print(f"{test.name} fails without a mutant:\n{result.output[-3000:]}", flush=True)
            failed.append(test.name)
        else:
            passed.append(result)
    return passed, failed


def judge_all(mutants, tests, results, commit, jobs):
    def judge(mutant):
        own = [test for test in tests if test.name.split(".")[0] in layers.programs_of(mutant.layer)]
        start = time.monotonic()
        verdict, noticed_by = trials.judge(mutant.number, own)
        results.add(mutant, commit, verdict=verdict, test=noticed_by, seconds=round(time.monotonic() - start, 1),
                    reached_by=sum(mutant.number in test.reached for test in own))
        return f"{verdict}: {mutant.text()}" + (f" ({noticed_by})" if noticed_by else "")

    remaining = [each for each in mutants if results.verdict(each) is None]
    for i, text in enumerate(map_in_threads(judge, remaining, jobs), 1):
        print(f"[{i}/{len(remaining)}] {text}", flush=True)


def report(mutants, results):
    """Prints the survivors and the rate of each layer; returns the rate of all."""
    lines = [(each, results.lines[each.number]) for each in mutants]
    survivors = [(each, line) for each, line in lines if line["verdict"] not in NOTICED]
    for reached, title in ((True, "Not noticed by tests that run the line:"), (False, "Run by no test of the layer:")):
        found = [each for each, line in survivors if bool(line["reached_by"]) == reached]
        if found:
            print("\n".join([title, *(f"  {each.text()}" for each in found)]))
    print("| layer | noticed |\n|---|---|")
    for layer in sorted({each.layer for each in mutants}):
        own = [line["verdict"] in NOTICED for each, line in lines if each.layer == layer]
        print(f"| {layer} | {sum(own)} of {len(own)} |")
    seconds = sum(line["seconds"] for _, line in lines) / max(len(lines), 1)
    rate = 1 - len(survivors) / max(len(lines), 1)
    print(f"{len(lines) - len(survivors)} of {len(lines)} broken lines were noticed ({rate:.1%}), {seconds:.1f} s a mutant")
    return rate


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("tree", type=Path, help="a copy of the project, whose sources this changes")
    parser.add_argument("build", type=Path, help="the build folder of the copy")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=200, help="broken lines (default: 200)")
    parser.add_argument("--within", default="src/", help="folders or beginnings of files, separated by commas (default: src/)")
    parser.add_argument("--results", type=Path, help="default: mutations.jsonl in the build folder")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="of builds and of mutants at a time")
    parser.add_argument("--floor", type=float, default=0.85, help="the share that has to be noticed (default: 0.85)")
    return parser.parse_args()


def main():
    given = arguments()
    tree, build = given.tree.resolve(), given.build.resolve()
    scratch.restore(tree)
    originals = sources(tree, given.within.split(","), layers.not_run(build))
    if not originals:
        raise SystemExit(f"--within {given.within}: no file of {tree} begins so; give paths such as src/kit/data")
    digest = hashlib.sha256("".join(originals.values()).encode()).hexdigest()[:16]
    settings = {"seed": given.seed, "count": given.count, "within": given.within, "sources": digest}
    results, commit = Results(given.results or build / "mutations.jsonl", settings), commit_of(tree)
    drawn = draw(originals, given.seed, int(given.count * SPARE))
    tried = [each for each in drawn if results.verdict(each) != "does-not-compile"]
    programs = sorted({program for each in drawn for program in layers.programs_of(each.layer)})
    try:
        compiled, left_out = scratch.build(tree, build, programs, originals, tried, given.jobs)
        for each in left_out:
            results.add(each, commit, verdict="does-not-compile", test="", seconds=0, reached_by=0)
        mutants = compiled[: given.count]
        tests, failing = first_runs(trials.tests_of(build, programs), given.jobs)
        judge_all(mutants, tests, results, commit, given.jobs)
    finally:
        scratch.restore(tree)
    rate = report(mutants, results)
    if failing:
        print(f"fail without a mutant: {', '.join(failing)}")
    if len(mutants) < given.count:
        print(f"only {len(mutants)} of the drawn lines compile: raise SPARE")
    sys.exit(int(rate < given.floor or bool(failing)))


if __name__ == "__main__":
    main()
