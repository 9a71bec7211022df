# SPDX-License-Identifier: BSD-3-Clause
"""Writes mutants into the sources of a tree and builds them. A changed file has its original beside it, <name>.unmutated, until
restore(); the next run restores what an ended one has left."""

import re
import shutil
import subprocess
from pathlib import Path

SUFFIX = ".unmutated"
HEADER = Path(__file__).resolve().parent / "mutant.h"
ERROR = re.compile(r"^(?P<file>/[^:\n]+):(?P<line>\d+):\d+: (?:fatal )?error: ", re.M)
MENTION = re.compile(r"(?P<file>/[^:\s]+):(?P<line>\d+):\d+: ")
MOST_BUILDS = 12


def restore(root):
    for saved in sorted((root / "src").rglob("*" + SUFFIX)):
        saved.replace(saved.with_name(saved.name.removesuffix(SUFFIX)))


def with_schemata(text, mutants):
    """The text with every mutant behind a switch. Messages of compilers and of the library name the lines that they named before."""
    for mutant in sorted(mutants, key=lambda each: each.start, reverse=True):
        text = text[: mutant.start] + mutant.code.replace("@", str(mutant.number)) + text[mutant.end :]
    return f'#include "{HEADER}"\n#line 1\n{text}'


def write(root, originals, mutants):
    """Puts `mutants`, and no others, into the files; touches only files that change."""
    for name, text in originals.items():
        path, own = root / name, [each for each in mutants if each.file == name]
        saved = path.with_name(path.name + SUFFIX)
        if own and not saved.exists():
            partial = saved.with_name(saved.name + ".part")
            shutil.copy2(path, partial)
            partial.replace(saved)
        wanted = with_schemata(text, own) if own else text
        if path.read_text() != wanted:
            path.write_text(wanted)


def lines_of(mutant):
    return range(mutant.line, mutant.line + mutant.before.count("\n") + 1)


def named_in(output, root, mutants, pattern):
    places = {(found["file"], int(found["line"])) for found in pattern.finditer(output)}
    return [each for each in mutants if any((str(root / each.file), line) in places for line in lines_of(each))]


def build(root, tree, programs, originals, mutants, jobs):
    """Builds the programs with all mutants but those that do not compile. Returns (the mutants, those left out)."""
    left_out = []
    for _ in range(MOST_BUILDS):
        write(root, originals, mutants)
        command = ["cmake", "--build", str(tree), "--parallel", str(jobs), "--target", *programs, "--", "-k", "0"]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        if done.returncode == 0:
            return mutants, left_out
        bad = named_in(done.stdout, root, mutants, ERROR) or named_in(done.stdout, root, mutants, MENTION)
        if not bad:
            (tree / "mutations.log").write_text(done.stdout)
            raise SystemExit(f"the build fails, and not at a mutant: {tree}/mutations.log\n{done.stdout[-2000:]}")
        print(f"{len(bad)} mutants do not compile", flush=True)
        left_out += bad
        mutants = [each for each in mutants if each not in bad]
    raise SystemExit(f"after {MOST_BUILDS} builds there are mutants that do not compile: {tree}/mutations.log")
