# SPDX-License-Identifier: BSD-3-Clause
"""The pages about the source name only files, notes and names that exist. Translations (<page>.zh.md) have the headings and code blocks
of their page, the start page has the program of the README, pictures are what their script draws, and C++ is in blocks that
tests/snippets compiles: check_docs.py <root of the project>"""

import re
import runpy
import sys
from pathlib import Path

import sources

PAGES = ("CONTRIBUTING.md", "docs/glossary.md", "docs/internals/*.md", "docs/decisions/*.md", "src/*/README.md")
FILE = re.compile(r"(?<![\w/.<])(?:[\w-]+/)*[\w-]+\.(?:h|cpp|py|sh|pml)\b")
NOTE = re.compile(r"\b[Nn]ote \[([^\]]+)\]")
NAME = re.compile(r"`([A-Za-z_]\w*(?:::~?\w+)*)(?:\(\))?`")
WORD = re.compile(r"\w+")
BLOCK = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
FENCE = re.compile(r"(?P<indent> *)(?:```|~~~)(?P<language>[\w+]*)")
STATEMENT = re.compile(r"[\w)\]}\"'];\s*(?://.*)?$")
PICTURES = Path("docs/pictures/make_pictures.py")
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
    return found + uncompiled_problems(root) + translation_problems(root) + program_problems(root) + picture_problems(root)


def uncompiled_problems(root):
    """C++ that is indented or in a block without a language, and blocks of C++ that do not begin a line with ```cpp."""
    found = []
    for page in sorted([*root.glob("*.md"), *root.glob("docs/**/*.md")]):
        fence = None
        for number, line in enumerate(page.read_text().splitlines(), 1):
            match = FENCE.match(line)
            if match and fence is None:
                fence = match["language"]
                bad = fence in ("c", "cc", "c++", "cxx", "C++") or (fence == "cpp" and match["indent"])
            elif match:
                fence, bad = None, False
            else:
                bad = (fence == "" or (fence is None and line.startswith("    "))) and STATEMENT.search(line)
            if bad:
                found.append(f"{page.relative_to(root)}:{number}: C++ outside of a block ```cpp at the start of a line, so nothing compiles it")
    return found


def levels(text):
    """The marks of the headings, such as ["#", "##"]."""
    return re.findall(r"^(#+) ", BLOCK.sub("", text), re.MULTILINE)


def translation_problems(root):
    found = []
    for page in sorted([*root.glob("*.zh.md"), *root.glob("docs/**/*.zh.md")]):
        name, original = page.relative_to(root), page.with_name(page.name.replace(".zh.md", ".md"))
        if not original.exists():
            found.append(f"{name} translates {original.relative_to(root)}, which does not exist")
            continue
        text, other = page.read_text(), original.read_text()
        if levels(text) != levels(other):
            found.append(f"{name} has other headings than {original.relative_to(root)}")
        if BLOCK.findall(text) != BLOCK.findall(other):
            found.append(f"{name} has other code blocks than {original.relative_to(root)}")
    return found


def program_problems(root):
    readme, start = root / "README.md", root / "docs" / "start.md"
    if not start.exists():
        return []
    program = next((block for block in BLOCK.findall(readme.read_text()) if "int main(" in block), None)
    return [] if program in BLOCK.findall(start.read_text()) else ["docs/start.md has not the program of README.md"]


def picture_problems(root):
    if not (root / PICTURES).exists():
        return []
    made = runpy.run_path(str(root / PICTURES))["problems"]()
    return [f"docs/pictures/{name} is not what its script draws: run python3 {PICTURES}" for name in made]


if __name__ == "__main__":
    sources.finish(problems(sys.argv[1]), "pages name what exists; translations and pictures are up to date")
