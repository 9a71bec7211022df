# SPDX-License-Identifier: BSD-3-Clause
"""The commands of the wheel. Apart from lockstep_torch, whose import loads torch, so that they start at once."""

import os
import sys
from importlib.util import find_spec


def folder():
    """The folder of the programs."""
    return os.path.join(find_spec("lockstep_torch").submodule_search_locations[0], "bin")


def run(name, arguments):
    """Becomes the program."""
    program = os.path.join(folder(), name)
    os.environ.setdefault("PYTHON_EXEC", sys.executable)  # of ranks, where the environment is not active
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execv(program, [program, *arguments])
    except FileNotFoundError:
        sys.exit(f"{program} is missing: install the lockstep-torch package, or run the program of a C++ build")


def main():
    run(os.path.basename(sys.argv[0]), sys.argv[1:])
