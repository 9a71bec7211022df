# SPDX-License-Identifier: BSD-3-Clause
"""The project's own files, for the checks beside this one."""

import sys
from pathlib import Path

FOLDERS = ("include", "src", "tools", "examples", "benchmarks", "tests", "docs", "cmake", "scripts", ".ci")
CPP = {".h", ".cpp"}


def files(root):
    """Every file of the project below `root`, sorted."""
    root = Path(root)
    found = [path for path in root.iterdir() if path.is_file()]
    for folder in FOLDERS:
        found += [path for path in (root / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return sorted(found)


def cpp_files(root):
    return [path for path in files(root) if path.suffix in CPP]


def finish(problems, good):
    """Prints what was found, and exits with 1 if that is anything."""
    for problem in problems:
        print(problem)
    if problems:
        sys.exit(f"{len(problems)} problem(s)")
    print(good)
