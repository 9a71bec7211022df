# SPDX-License-Identifier: BSD-3-Clause
"""The version of a release, wherever the project states it: version.py check|set|notes <version> [--rehearse] [--date <date>]

  check   fails unless every file states this version, and the changelog has its dated section
  set     makes every file state it: one command, whose changes are then reviewed and committed
  notes   prints the section of the changelog

--rehearse accepts a section of the changelog that is called unreleased. --date is that of the release, today by default.
"""

import argparse
import datetime
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HEADER = "include/lockstep/version.h"
CHANGELOG = "CHANGELOG.md"
CITATION = "CITATION.cff"
# Programs ask for a minor release.
REQUESTS = ("docs/start.md", "docs/start.zh.md", "docs/coming-from-python-ddp.md", "tests/package/consumer/CMakeLists.txt")
REQUEST = re.compile(r"(find_package\(Lockstep )(\d+\.\d+)(?= )")
# The first sentence of the status in the README: the words, those without the part that nothing is released, and that part.
STATUS = {"README.md": (r"^Version (\d+\.\d+\.\d+)( is not released)?\.", "Version {}."),
          "README.zh.md": (r"^(\d+\.\d+\.\d+) 版(尚未发布)?。", "{} 版。")}
# Elsewhere such words go with the first release.
UNRELEASED = {"README.md": ", not published yet", "README.zh.md": "，尚未公开发布",
              "docs/releasing.md": "Nothing is published so far. ",
              "SECURITY.md": " Nothing is released so far, so they go to the main branch."}


def stated_version(text):
    """The version of version.h, which CMake and pyproject.toml read."""
    return ".".join(re.search(rf"_{part} (\d+)$", text, re.MULTILINE)[1] for part in ("MAJOR", "MINOR", "PATCH"))


def heading(changelog, version):
    """What follows the version in the heading of its section: "(2026-12-01)", "(unreleased)"; None without a section."""
    match = re.search(rf"^## {re.escape(version)} (\(.*\))$", changelog, re.MULTILINE)
    return match and match[1]


def notes(changelog, version):
    """The section of this version, without its heading."""
    match = re.search(rf"^## {re.escape(version)}(?: [^\n]*)?\n(.*?)(?=^## |\Z)", changelog, re.DOTALL | re.MULTILINE)
    if not match or not match[1].strip():
        raise ValueError(f"{CHANGELOG} has no section of {version}")
    return match[1].strip() + "\n"


def problems(root, version, rehearse):
    def read(name):
        return (root / name).read_text()
    found = []
    if (stated := stated_version(read(HEADER))) != version:
        found.append(f"{HEADER}, which CMake and pyproject.toml read, says {stated}")
    if (title := heading(read(CHANGELOG), version)) is None:
        found.append(f"{CHANGELOG} has no section of {version}")
    elif not rehearse and not re.fullmatch(r"\(\d{4}-\d\d-\d\d\)", title):
        found.append(f"{CHANGELOG} calls {version} {title} instead of giving its date")
    if not re.search(rf"^version: {re.escape(version)}$", read(CITATION), re.MULTILINE):
        found.append(f"{CITATION} has another version")
    minor = version.rpartition(".")[0]
    for name in REQUESTS:
        found += [f"{name} asks for Lockstep {other}" for _, other in REQUEST.findall(read(name)) if other != minor]
    for name, (words, _) in STATUS.items():
        match = re.search(words, read(name), re.MULTILINE)
        if not match or match[1] != version:
            found.append(f"{name} does not say that this is version {version}")
        elif match[2] and not rehearse:
            found.append(f"{name} says that nothing is released")
    if not rehearse:
        found += [f"{name} says \"{words.strip(' ,.，')}\"" for name, words in UNRELEASED.items() if words in read(name)]
    return found


def set_version(root, version, date):
    if heading((root / CHANGELOG).read_text(), version) is None and "(unreleased)\n" not in (root / CHANGELOG).read_text():
        raise ValueError(f"{CHANGELOG} has no section for {version}: write one, \"## {version} (unreleased)\", first")

    def change(name, pattern, replacement, flags=re.MULTILINE):
        path = root / name
        path.write_text(re.sub(pattern, replacement, path.read_text(), flags=flags))
    for part, number in zip(("MAJOR", "MINOR", "PATCH"), version.split(".")):
        change(HEADER, rf"(_{part}) \d+$", rf"\g<1> {number}")
    change(CHANGELOG, r"^## \S+ \(unreleased\)$", f"## {version} ({date})")
    change(CITATION, r"^version: .*(?:\ndate-released: .*)?$", f"version: {version}\ndate-released: {date}")
    for name in REQUESTS:
        change(name, REQUEST, rf"\g<1>{version.rpartition('.')[0]}", flags=0)
    for name, (words, now) in STATUS.items():
        change(name, words, now.format(version))
    for name, words in UNRELEASED.items():
        change(name, re.escape(words), "")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("check", "set", "notes"))
    parser.add_argument("version")
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--date", default=datetime.date.today().isoformat())
    parser.add_argument("--root", type=Path, default=ROOT)
    arguments = parser.parse_args()
    version = arguments.version
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        sys.exit(f"error: the version is \"{version}\"; it must be three numbers, such as 0.2.0")
    try:
        datetime.date.fromisoformat(arguments.date)
        if arguments.action == "notes":
            sys.stdout.write(notes((arguments.root / CHANGELOG).read_text(), version))
            return
        if arguments.action == "set":
            set_version(arguments.root, version, arguments.date)
    except ValueError as error:
        sys.exit(f"error: {error}")
    if found := problems(arguments.root, version, arguments.rehearse):
        sys.exit(f"error: this tree is not {version}:\n  " + "\n  ".join(found)
                 + f"\nscripts/release/version.py set {version} changes all of these; commit its changes")


if __name__ == "__main__":
    main()
