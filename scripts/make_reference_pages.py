#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Makes pages of the reference from their sources: make_reference_pages.py [--check] [--bin FOLDER] [ROOT]

docs/errors.md          the tables of error types and of their data, from the comments of the public headers
docs/command-line.md    from --help of the programs in FOLDER (with --bin)
docs/environment.md     is written by hand; this says which variables of the source it lacks, and which are in no source

--check writes nothing and fails where a page is not what its sources give.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

ERRORS = "docs/errors.md"
COMMANDS = "docs/command-line.md"
ENVIRONMENT = "docs/environment.md"

COMMENT = r"((?:[ \t]*///[^\n]*\n)+)"
CLASS = re.compile(COMMENT + r"class (\w+) : public ([\w:]+) \{")
MEMBER = re.compile(COMMENT + r"  (?:const )?[\w:<>]+&? (\w+)\(\) const")
LABELS = ("Data", "Remedy", "PyTorch")


def text_of(comment):
    return " ".join(line.strip().removeprefix("///").strip() for line in comment.splitlines())


def parts_of(comment):
    """The text and its labelled parts: {"": ..., "Data": ..., "Remedy": ..., "PyTorch": ...}."""
    pieces = re.split(rf"\b({'|'.join(LABELS)}): ", text_of(comment))
    return {"": pieces[0].strip()} | {label: text.strip() for label, text in zip(pieces[1::2], pieces[2::2])}


def error_types(root):
    """[(name, base, parts of its comment)] of all public error types, bases first."""
    headers = [root / "include/lockstep/base/error.h", *sorted((root / "include").rglob("*.h"))]
    found = {}
    for header in headers:
        for comment, name, base in CLASS.findall(header.read_text()):
            if base == "std::runtime_error" or base in found:
                found.setdefault(name, (base, parts_of(comment)))
    return [(name, base, parts) for name, (base, parts) in found.items()]


def cell(text):
    """Members and types as code."""
    text = re.sub(r"(?<!`)\b(\w+\(\))(?!`)", r"`\1`", text)
    return text.removesuffix(".").replace("|", "\\|")


def row(cells):
    return "| " + " | ".join(cells) + " |\n"


def table_of_types(root):
    lines = row(["type", "base", "thrown when, and what holds afterwards", "data", "what a program does", "PyTorch"])
    lines += row(["---"] * 6).replace(" ", "")
    for name, base, parts in error_types(root):
        missing = [label for label in ("Data", "Remedy") if label not in parts]
        if missing:
            raise SystemExit(f"{name}: its comment has no part \"{missing[0]}:\"")
        cells = [f"`{name}`", f"`{base}`", parts[""].rstrip("."), cell(parts["Data"]), parts["Remedy"].rstrip("."),
                 parts.get("PyTorch", "-").rstrip(".")]
        lines += row([text.replace("|", "\\|") for text in cells])
    return lines


def table_of_data(root):
    header = (root / "include/lockstep/base/error.h").read_text()
    body = header[header.index("class Error "):header.index("class ArgumentError")]
    lines = row(["member", "what it gives"]) + row(["---"] * 2).replace(" ", "")
    for comment, name in MEMBER.findall(body):
        lines += row([f"`{name}()`", cell(text_of(comment))])
    return lines


def with_part(page, name, text):
    """The page with another text between the marks of that part."""
    begin, end = f"<!-- {name}: made by scripts/make_reference_pages.py -->\n\n", f"\n<!-- end of {name} -->\n"
    if begin not in page or end not in page:
        raise SystemExit(f"{ERRORS} has no part between {begin.strip()} and {end.strip()}")
    return page[:page.index(begin) + len(begin)] + text + page[page.index(end):]


def page_of_errors(root):
    page = with_part((root / ERRORS).read_text(), "types", table_of_types(root))
    return with_part(page, "data", table_of_data(root))


def help_of(program, words):
    run = subprocess.run([program, *words, "--help"], capture_output=True, text=True, check=True, timeout=60)
    return "\n".join(line.rstrip() for line in run.stdout.strip().splitlines()) + "\n"


def commands_in(text):
    """The names below "Subcommands:"."""
    listed = text.partition("\nSubcommands:\n")[2].split("\n\n")[0]
    return re.findall(r"^  (\w[\w-]*)", listed, re.MULTILINE)


def sections(program, words, level):
    text = help_of(program, words)
    page = f"\n{'#' * level} {' '.join(['lockstep', *words])}\n\n```text\n{text}```\n"
    for command in commands_in(text):
        page += sections(program, [*words, command], level + 1)
    return page


def page_of_commands(folder):
    return ("# Command line\n\n"
            "<!-- made by scripts/make_reference_pages.py from --help -->\n\n"
            "Each command prints its options with `--help`. The guides: [`run`](launcher.md), [`devices` and `doctor`](doctor.md),\n"
            "[`recorder`, `stacks` and `top`](observe.md), [`ckpt`](checkpoints.md), [`plan`](meshes.md), [`bench`](benchmarks.md).\n"
            "The wheel of [`lockstep-torch`](python.md) installs the same commands.\n" + sections(Path(folder) / "lockstep", [], 2))


# Names in capitals that are no variables: C's and PyTorch's constants, and names that only the report of a run shows.
NO_VARIABLES = re.compile(r"(SEND|RECV|WAIT|REDUCE|OVERLAP)_.*|F8_.*|SO_.*|T_0|COLOR_PAIR|LOCKSTEP_(GRAPH|WITH_\w+)|LD_LIBRARY_PATH|"
                          r"OMPI_MCA_|CS_GNU_LIBC_VERSION")
SHORT = ("RANK", "TERM", "PATH", "TMPDIR", "ENVIRONMENT", "http_proxy", "https_proxy", "all_proxy", "no_proxy")
NAME = r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+_?"


def variables_in_source(root):
    """{name: a file that has it}"""
    found = {}
    for folder in ("src", "tools", "include", "python"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in (".h", ".cpp", ".py"):
                continue
            text = path.read_text()
            for name in re.findall(rf"[\"']({NAME}|{'|'.join(SHORT)})[\"']", text):
                if not NO_VARIABLES.fullmatch(name):
                    found.setdefault(name, str(path.relative_to(root)))
    for path in sorted((root / "scripts").glob("*.sh")):  # those with a default: others are the script's own
        for name in re.findall(r"\$\{(LOCKSTEP_\w+):?[-+?]", path.read_text()):
            found.setdefault(name, str(path.relative_to(root)))
    return found


def problems_of_environment(root):
    page = (root / ENVIRONMENT).read_text()
    first_cells = re.findall(r"^\| ([^|]*) \|", page, re.MULTILINE)
    listed = {name for each in first_cells for name in re.findall(r"`(\w+)`", each)}
    source = variables_in_source(root)
    # Options of `lockstep run` are on the page of commands.
    lacking = [name for name in source if name not in listed and not name.startswith("PET_")]
    return ([f"{ENVIRONMENT} lacks {name}, which {source[name]} has" for name in lacking] +
            [f"{ENVIRONMENT} has {name}, which is in no source" for name in sorted(listed - set(source))])


def comparable(text):
    """Without what differs between releases of CLI11: how a default is written, and where lines break."""
    return " ".join(re.sub(r"(?<! in) \[([^\[\]]*)\](?=\s)", r"=\1", text).split())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--bin", type=Path)
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).resolve().parents[1])
    arguments = parser.parse_args()
    pages = {ERRORS: page_of_errors(arguments.root)}
    if arguments.bin:
        pages[COMMANDS] = page_of_commands(arguments.bin)
    problems = problems_of_environment(arguments.root)
    for name, text in pages.items():
        path = arguments.root / name
        if arguments.check and (not path.exists() or comparable(path.read_text()) != comparable(text)):
            problems.append(f"{name} is not what its sources give: run scripts/make_reference_pages.py --bin <folder of lockstep>")
        elif not arguments.check:
            path.write_text(text)
    print("\n".join(problems) or "the pages of the reference are what their sources give")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
