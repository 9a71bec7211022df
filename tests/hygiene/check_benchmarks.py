# SPDX-License-Identifier: BSD-3-Clause
"""The recorded runs have the fields that they need, and docs/benchmarks.md is made from them: check_benchmarks.py <root of the project>"""

import sys
from pathlib import Path

import sources

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import make_page
import records


def problems(root):
    root = Path(root)
    folder = root / "benchmarks"
    found = [f"{path.relative_to(root)}: {problem}" for path in sorted((folder / "results").iterdir()) for problem in records.problems(path)]
    if found:
        return found
    if (root / "docs" / "benchmarks.md").read_text() != make_page.page(folder):
        found.append("docs/benchmarks.md is not what the recorded runs and benchmarks/page.md give: run python3 benchmarks/make_page.py")
    picture = root / "docs" / "all_reduce.svg"
    if picture.exists() and picture.read_text() != make_page.picture(folder):
        found.append("docs/all_reduce.svg is not what the newest recorded run gives: run python3 benchmarks/make_page.py")
    readme = (root / "README.md").read_text().splitlines()
    found += [f"README.md has not the row {line}" for line in make_page.range_lines(records.load(folder / "results")) if line not in readme]
    return found


if __name__ == "__main__":
    sources.finish(problems(sys.argv[1]), "docs/benchmarks.md is made from the recorded runs")
