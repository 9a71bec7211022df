# SPDX-License-Identifier: BSD-3-Clause
"""Makes odd files, reads them with Python's libraries and writes what these found: foreign_files.py <folder>

cases.txt has a line for each file and library, of fields with tabs between them: the kind of file, the library, how to
read it, its path in the folder, and the outcome, "=" and the value as foreign_values.py describes it, or "!" and the
error. A kind is a row of the table in docs/foreign-files.md where Lockstep differs.
"""
import pathlib
import sys
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import torchvision_cpu  # noqa: E402, F401

import foreign_archives  # noqa: E402
import foreign_arrays  # noqa: E402
import foreign_checkpoints  # noqa: E402
import foreign_folders  # noqa: E402
import foreign_pictures  # noqa: E402
import foreign_safetensors  # noqa: E402
from foreign_values import described  # noqa: E402

MODULES = (foreign_archives, foreign_arrays, foreign_checkpoints, foreign_folders, foreign_pictures, foreign_safetensors)


def outcome(read):
    try:
        value = read()
    except Exception as error:  # noqa: BLE001, libraries raise whatever they like
        return "!" + " ".join(f"{type(error).__name__}: {error}".split())[:300]
    try:
        return "=" + described(value)
    except RecursionError:
        return "=other value, which holds itself"


def main():
    folder = pathlib.Path(sys.argv[1])
    warnings.simplefilter("ignore")
    with open(folder / "cases.txt", "w") as file:
        for module in MODULES:
            for case in module.cases(folder):
                print(case.kind, case.library, case.how, case.path.relative_to(folder), outcome(case.read), sep="\t", file=file)


main()
