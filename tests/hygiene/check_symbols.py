# SPDX-License-Identifier: BSD-3-Clause
"""Our libraries define no symbol of GlooStore: check_symbols.py <nm> <library>...

The distribution's Gloo headers, which we compile against, are older than the Gloo inside LibTorch. A definition of
c10d::ProcessGroupGloo::GlooStore in our objects would be laid out after the old headers and could win over
LibTorch's own.
"""

import subprocess
import sys

import sources

FORBIDDEN = "ProcessGroupGloo::GlooStore"


def problems(nm, *libraries):
    found = []
    for library in libraries:
        result = subprocess.run([nm, "--demangle", "--defined-only", library], capture_output=True, text=True)
        if result.returncode:
            found.append(f"{library}: {result.stderr.strip()}")
        found += [f"{library}: {line}" for line in result.stdout.splitlines() if FORBIDDEN in line]
    return found


if __name__ == "__main__":
    sources.finish(problems(*sys.argv[1:]), f"no symbol of {FORBIDDEN}")
