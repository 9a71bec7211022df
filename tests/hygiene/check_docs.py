# SPDX-License-Identifier: BSD-3-Clause
"""The pages about the source name only files, notes and names that exist: check_docs.py <root of the project>"""

import re
import sys
from pathlib import Path

import sources

PAGES = ("CONTRIBUTING.md", "docs/glossary.md", "docs/internals/*.md", "docs/decisions/*.md", "src/*/README.md")
FILE = re.compile(r"(?<![\w/.<])(?:[\w-]+/)*[\w-]+\.(?:h|cpp|py|sh|pml)\b")
NOTE = re.compile(r"\b[Nn]ote \[([^\]]+)\]")
NAME = re.compile(r"`([A-Za-z_]\w*(?:::~?\w+)*)(?:\(\))?`")
WORD = re.compile(r"\w+")
# Files of others, the form of a note, and names of PyTorch that the source does not use.
ELSEWHERE = {"mpi.h", "Title", "ProcessGroupMPI", "__torch_dispatch__"}


def problems(root):
    root = Path(root)
    files = [path for path in [*sources.files(root), *(root / "python").rglob("*")] if path.is_file()]
    ends = {"/".join(parts[i:]) for path in files for parts in [path.relative_to(root).parts] for i in range(len(parts))}
    source = "\n".join(path.read_text(errors="replace") for path in files
                       if path.suffix in sources.CPP | {".py", ".sh", ".txt", ".cmake"} and path.name != "check_docs.py")
    words = set(WORD.findall(source)) | ELSEWHERE
    notes = set(NOTE.findall(source)) | ELSEWHERE
    found = []
    for page in sorted(path for pattern in PAGES for path in root.glob(pattern)):
        for number, line in enumerate(page.read_text().splitlines(), 1):
            text = re.sub(r"\]\([^)]*\)", "]", line)
            missing = [f"file {name}" for name in FILE.findall(text) if name not in ends | ELSEWHERE]
            missing += [f"note {name}" for name in NOTE.findall(text) if name not in notes]
            missing += [f"name {name}" for name in NAME.findall(text) if not words.issuperset(WORD.findall(name))]
            found += [f"{page.relative_to(root)}:{number}: there is no {what}" for what in missing]
    return found


if __name__ == "__main__":
    sources.finish(problems(sys.argv[1]), "the pages about the source name what exists")
