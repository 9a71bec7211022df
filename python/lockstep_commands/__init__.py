# SPDX-License-Identifier: BSD-3-Clause
"""The commands of the wheel. Apart from lockstep_torch, whose import loads torch, so that they start at once."""

import os
import sys
from importlib.util import find_spec

# Subcommands that are programs of their own and load LibTorch. `lockstep doctor` reports one that does not fit.
_NEED_LIBTORCH = ("bench", "ckpt", "plan")


def folder():
    """The folder of the programs."""
    return os.path.join(find_spec("lockstep_torch").submodule_search_locations[0], "bin")


def _check_torch():
    """The programs would end at an undefined symbol of another release."""
    from importlib import metadata
    from runpy import run_path
    build = run_path(os.path.join(os.path.dirname(folder()), "_build.py"))
    needed = build["torch_version"]
    try:
        found = metadata.version("torch")
    except metadata.PackageNotFoundError:
        sys.exit(f"lockstep_torch {build['version']} needs torch {needed}, and no torch is installed: install torch=={needed}")
    if found.split("+")[0] != needed:
        sys.exit(f"lockstep_torch {build['version']} was built for torch {needed}, but torch {found} is installed: install "
                 f"torch=={needed}, or the lockstep_torch of your torch")


def run(name, arguments):
    """Becomes the program."""
    if name == "lockstep-ckpt" or (name == "lockstep" and arguments and arguments[0] in _NEED_LIBTORCH):
        _check_torch()
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
