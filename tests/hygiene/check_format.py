# SPDX-License-Identifier: BSD-3-Clause
"""C++ files are formatted as .clang-format says: check_format.py <root of the project> <clang-format 16>"""

import subprocess
import sys

import sources

VERSION = "16."


def problems(root, program):
    try:
        version = subprocess.run([program, "--version"], capture_output=True, text=True).stdout
    except OSError:
        version = ""
    if f"version {VERSION}" not in version:
        return [f"{program} is no clang-format {VERSION}x; scripts/setup.sh --tests installs one"]
    paths = [str(path) for path in sources.cpp_files(root)]
    if not paths:
        return []
    result = subprocess.run([program, "--dry-run", "--Werror", *paths], cwd=root, capture_output=True, text=True)
    found = [line for line in result.stderr.splitlines() if "error:" in line]
    if result.returncode and not found:
        found = [result.stderr]
    return found


if __name__ == "__main__":
    sources.finish(problems(*sys.argv[1:]), "every C++ file is formatted")
