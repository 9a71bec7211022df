# SPDX-License-Identifier: BSD-3-Clause
"""Every source file says its licence in its first line: check_licence.py <root of the project>"""

import sys

import sources

LINE = "SPDX-License-Identifier: BSD-3-Clause"
SUFFIXES = sources.CPP | {".py", ".sh", ".cmake", ".in", ".txt"}
NAMES = {".clang-format", ".clang-tidy", "run"}


def says_licence(text):
    lines = text.splitlines()[:2]
    if lines and lines[0].startswith("#!"):
        lines = lines[1:]
    return bool(lines) and lines[0] in (f"// {LINE}", f"# {LINE}")


def problems(root):
    subjects = [path for path in sources.files(root) if path.suffix in SUFFIXES or path.name in NAMES]
    return [f"{path.relative_to(root)}: its first line is not the SPDX line" for path in subjects
            if not says_licence(path.read_text())]


if __name__ == "__main__":
    sources.finish(problems(sys.argv[1]), "every source file says its licence")
