# SPDX-License-Identifier: BSD-3-Clause
"""The C++ of the pages and of the comments in public headers, as files that a compiler checks.

snippets.py extract <root> <folder>       writes pages.cpp, headers.cpp and programs.cpp
snippets.py program <page> <file>         writes the first program of a page as a file of its own
snippets.py run <programs> <launcher>     runs the programs that need no download, on two ranks

The blocks ```cpp of Markdown pages are compiled. Blocks from one with an #include to the one with main() are a program. The
other blocks are fragments: each sees what the blocks above it declare, the names of prelude.h, and what the page declares by
<!-- prelude: ... -->, which a reader does not see. In public headers, the indented lines of comments are fragments, each by
itself. A fragment stands in a program that is `using namespace lockstep`; in a header also the header's own namespaces.
Errors name the line of the page or header.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

BLOCK = re.compile(r"^```cpp\n(?P<code>.*?)^```|<!-- prelude:(?P<prelude>.*?)-->", re.DOTALL | re.MULTILINE)
INDENTED = re.compile(r"\s*///(?: {5}(?P<code>.*)| ?(?P<text>.*))$")
LITERAL_OR_COMMENT = re.compile(r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])+'""", re.DOTALL)
DECLARATION = re.compile(r"(template|struct|class|enum|using|namespace|extern|TORCH_MODULE)\b")
CONTROL = re.compile(r"(if|for|while|switch|do|try|catch|else|return|throw|auto|const auto)\b")
FUNCTION = re.compile(r"[\w:<>&*,\s]*[\w>][\s&*]+[A-Za-z_]\w*\s*\(")


class Snippet(NamedTuple):
    file: Path
    line: int
    code: str
    is_prelude: bool = False


class Program(NamedTuple):
    name: str
    blocks: list


def blank(code):
    """The code with spaces for comments and the contents of literals; every other character keeps its place."""
    code = re.sub(r"(?<=[0-9a-fA-F])'(?=[0-9a-fA-F])", "0", code)  # 1'000
    return LITERAL_OR_COMMENT.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), code)


def closing(text, opening):
    """The place of the bracket that closes the one at `opening`."""
    depth = 0
    for place in range(opening, len(text)):
        depth += (text[place] in "([{") - (text[place] in ")]}")
        if depth == 0:
            return place
    return len(text) - 1


def statements(code):
    """The statements and declarations of the code, as pairs of text and place."""
    text, start, place = blank(code), 0, 0
    while place < len(text):
        character = text[place]
        if character in "([{":
            place = closing(text, place)
            ends = character == "{" and not re.match(r"\s*[;,.()\[{-]", text[place + 1:])
        else:
            ends = character == ";" or (character == "\n" and text[start:place].lstrip().startswith("#"))
        place += 1
        if ends:
            yield code[start:place], start
            start = place
    if code[start:].strip():
        yield code[start:], start


def is_declaration(statement):
    """Whether it stands outside of functions, as types, functions, aliases and using-directives do."""
    text = blank(statement).strip()
    if DECLARATION.match(text):
        return True
    function = FUNCTION.match(text)
    if CONTROL.match(text) or not function:
        return False
    behind = text[closing(text, function.end() - 1) + 1:]
    return bool(re.match(r"\s*(const\s*|noexcept\s*|override\s*)*(->[^{;]*)?\{", behind))


class Code:
    """The parts of some snippets: what is included, declared, and run."""

    def __init__(self):
        self.includes, self.declarations, self.functions, self.depth = [], [], [], 0

    def add(self, snippet):
        declared, run = [], []
        for text, start in statements(snippet.code):
            line = snippet.line + snippet.code[:start].count("\n")
            placed = f'#line {line} "{snippet.file}"\n{text}\n'
            stripped = blank(text).strip()
            if stripped.startswith("#include"):
                self.includes.append(text.strip())
            elif stripped and (snippet.is_prelude or is_declaration(text)):
                declared.append(placed)
            elif stripped:
                run.append((placed, stripped))
        if declared:  # a namespace inside those of the blocks above it, whose names it can hide
            self.declarations += [f"namespace n{len(self.declarations)} {{\n", *declared]
            self.depth += 1
        code = "".join(placed for placed, _ in run)
        if any(text.startswith(("return", "co_return")) for _, text in run):
            code = f"[&] {{\n{code}}}();\n"
        if code:
            self.functions.append(code)

    def text(self, name, start=""):
        nested = "".join("{\n" + code for code in self.functions) + "}" * len(self.functions)
        return (f"namespace {name} {{\n{start}" + "".join(self.declarations) + f"void run() {{\n{nested}}}\n"
                + "}" * self.depth + "}\n")


def parts_of_page(page):
    """The page's programs, and its fragments and preludes."""
    text = page.read_text(encoding="utf-8")
    program, fragments, programs = [], [], []
    for match in BLOCK.finditer(text):
        group = "code" if match.group("code") is not None else "prelude"
        snippet = Snippet(page, text.count("\n", 0, match.start(group)) + 1, match.group(group), group == "prelude")
        if not snippet.is_prelude and (program or re.search(r"^#include", snippet.code, re.MULTILINE)):
            program.append(snippet)
            if re.search(r"^int main\(", snippet.code, re.MULTILINE):
                programs.append(program)
                program = []
        else:
            fragments.append(snippet)
    if program:
        sys.exit(f"{page}:{program[0].line}: no block after this #include defines main()")
    return programs, fragments


def fragments_of_header(header):
    """The indented lines of comments below an empty line."""
    found, code, was_empty = [], [], False
    for number, line in enumerate(header.read_text(encoding="utf-8").splitlines() + [""], 1):
        match = INDENTED.match(line)
        if match and match.group("code") and (code or was_empty):
            code.append(match.group("code"))
            continue
        if match and match.group("text") == "" and code:
            code.append("")
        elif code:
            found.append(Snippet(header, number - len(code), "\n".join(code) + "\n"))
            code = []
        was_empty = bool(match) and match.group("text") == ""
    return found


def identifier(path):
    return re.sub(r"\W", "_", str(path))


def program_text(name, blocks):
    """A namespace with the program's main() in it, which ends with `return 0` as main() does."""
    text, includes = "", []
    for block in blocks:
        code = re.sub(r"^#include.*$", lambda match: includes.append(match.group()) or "", block.code, flags=re.MULTILINE)
        main = re.search(r"^int main\([^)]*\)\s*\{", blank(code), re.MULTILINE)
        if main:
            end = closing(blank(code), main.end() - 1)
            code = code[:end] + "return 0; " + code[end:]
        text += f'#line {block.line} "{block.file}"\n{code}'
    return includes, f"namespace {name} {{\n{text}}}\n"


def write(file, text):
    if not file.exists() or file.read_text(encoding="utf-8") != text:
        file.write_text(text, encoding="utf-8")


def joined(includes, codes):
    return "".join(f"{include}\n" for include in dict.fromkeys(includes)) + "\n" + "\n".join(codes)


def pages(root):
    """Without translations, which have the code of their pages (tests/hygiene/check_docs.py)."""
    return [root / "README.md", *sorted(page for page in (root / "docs").rglob("*.md") if not page.name.endswith(".zh.md"))]


def extract(root, folder):
    # Lockstep has namespaces with the last two names.
    start = "using namespace lockstep;\nusing namespace prelude;\nusing prelude::ddp;\nusing prelude::training;\n"
    includes, codes, program_includes, programs, choices = ['#include "prelude.h"'], [], [], [], []
    for page in pages(root):
        page_programs, fragments = parts_of_page(page)
        name = identifier(page.relative_to(root).with_suffix(""))
        for number, blocks in enumerate(page_programs, 1):
            program_name = name if number == 1 else f"{name}_{number}"
            used, text = program_text(program_name, blocks)
            program_includes += used
            programs.append(text)
            choices.append((program_name, "".join(block.code for block in blocks)))
        if any(not fragment.is_prelude for fragment in fragments):
            code = Code()
            for fragment in fragments:
                code.add(fragment)
            includes += code.includes
            codes.append(code.text(name, start))
    write(folder / "pages.cpp", joined(includes, codes))

    codes = []
    for header in sorted((root / "include").rglob("*.h")):
        names = sorted(set(re.findall(r"^namespace (lockstep::(?!\S*detail)\S+) \{", header.read_text(encoding="utf-8"), re.MULTILINE)))
        own = "".join(f"using namespace {name};\n" for name in names)
        for snippet in fragments_of_header(header):
            code = Code()
            code.add(snippet)
            codes.append(code.text(f"{identifier(header.relative_to(root))}_{snippet.line}", start + own))
    write(folder / "headers.cpp", joined(includes[:1], codes))

    choice = "".join(f'  if (name == "{name}") return {name}::main();\n' for name, _ in choices)
    runnable = " ".join(name for name, code in choices if ".download = true" not in code)
    programs.append("int main(int argc, char** argv) {\n  const std::string name = argc > 1 ? argv[1] : \"\";\n"
                    f'{choice}  std::cout << "{runnable}\\n";\n}}\n')
    write(folder / "programs.cpp", joined(["#include <iostream>", "#include <string>", *program_includes], programs))


def program(page, file):
    programs, _ = parts_of_page(page)
    if not programs:
        sys.exit(f"{page}: no blocks from an #include to main()")
    file.write_text("".join(block.code for block in programs[0]), encoding="utf-8")


def run(programs, launcher):
    names = subprocess.run([programs], check=True, capture_output=True, text=True).stdout.split()
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            command = [launcher, "run", "--nproc-per-node", "2", programs, name]
            if subprocess.run(command, cwd=folder).returncode != 0:
                sys.exit(f"the program of the page {name} failed on two ranks")
    print("ran:", *names)


if __name__ == "__main__":
    command, first, second = sys.argv[1:]
    {"extract": extract, "program": program, "run": run}[command](Path(first).absolute(), Path(second).absolute())
