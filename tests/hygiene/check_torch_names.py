# SPDX-License-Identifier: BSD-3-Clause
"""The installed packages have the names of PyTorch that the documentation links: check_torch_names.py <table of names>"""

import importlib
import sys
from pathlib import Path

import sources


def exists(name):
    """Whether an import of some of its first parts has the rest as attributes."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:count]))
        except ImportError:
            continue
        try:
            for part in parts[count:]:
                found = getattr(found, part)
        except AttributeError:
            continue  # a name of the package may hide the module, as powerSGD_hook.powerSGD_hook does
        return True
    return False


def problems(table):
    lines = enumerate(Path(table).read_text().splitlines(), 1)
    return [f"{table}:{number}: there is no {name}" for number, line in lines if line.startswith(" ") for name in line.split() if not exists(name)]


if __name__ == "__main__":
    sources.finish(problems(sys.argv[1]), "every name that the documentation links exists")
