#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Compiles a file of a user: torch/torch.h alone, the program of README.md with the headers by theme or lockstep/lockstep.h, and with
its precompiled header. Reports processor time of the compiler, without optimization."""
import json
import os
import pathlib
import re
import resource
import shlex
import statistics
import subprocess
import tempfile

import bench_support as bench

WHOLE = "#include <lockstep/lockstep.h>"
THEMES = "#include <lockstep/data.h>\n#include <lockstep/distributed.h>"


def compiler():
    """The command that compiles examples, with its include folders and without its other options."""
    commands = json.loads((bench.BUILD / "compile_commands.json").read_text(encoding="utf-8"))
    words = shlex.split(next(each["command"] for each in commands if each["file"].endswith("examples/01_hello_allreduce.cpp")))
    [start] = [i for i, word in enumerate(words) if re.search(r"(\+\+|clang)[-\d]*$", word)][:1]
    system = [f"-isystem{words[i + 1]}" for i, word in enumerate(words) if word == "-isystem"]
    return [words[start], "-std=gnu++20", *(word for word in words if re.match(r"-[ID]", word)), *system]


def seconds(command, folder, timeout):
    """Processor time of the command and its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=folder, check=True, timeout=timeout)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main():
    flags = bench.recording_parser(__doc__, rounds=5).parse_args()
    [program] = re.findall(r"^```cpp\n(.*?)^```", (bench.ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)[:1]
    assert WHOLE in program
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for file, text in {"torch.cpp": "#include <torch/torch.h>\n", "themes.cpp": program.replace(WHOLE, THEMES), "whole.cpp": program,
                           "precompiled.cpp": program.replace(WHOLE, ""), "header.h": WHOLE}.items():
            (folder / file).write_text(text)
        compile_header = [*compiler(), "-x", "c++-header", "header.h", "-o", "header.h.gch"]
        header = seconds(compile_header, folder, flags.timeout)
        megabytes = (folder / "header.h.gch").stat().st_size / 1e6
        sides = {"torch/torch.h alone": ["torch.cpp"], "lockstep/distributed.h and data.h": ["themes.cpp"], "lockstep/lockstep.h": ["whole.cpp"],
                 "lockstep/lockstep.h, precompiled": ["-Winvalid-pch", "-Werror=invalid-pch", "-include", "header.h", "precompiled.cpp"]}
        rounds = bench.interleave({side: lambda words=words: seconds([*compiler(), "-c", *words, "-o", os.devnull], folder, flags.timeout)
                                   for side, words in sides.items()}, flags.rounds)
    torch = rounds["torch/torch.h alone"]
    rows = [[side, times, bench.ratio(times, torch)] for side, times in rounds.items()]
    rows.append([f"the precompiled header itself, {megabytes:.0f} MB", header, header / statistics.median(torch)])
    bench.report(flags, rounds, {"compile": [bench.table("Processor time to compile a file", ["headers", "seconds", "times torch/torch.h"], rows)]},
                 [f"{'reached' if rows[1][2] <= 1.3 else 'MISSED'}: distributed.h and data.h in 1.3 times torch/torch.h: {rows[1][2]:.2f}"])


if __name__ == "__main__":
    main()
