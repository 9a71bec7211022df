# SPDX-License-Identifier: BSD-3-Clause
"""Includes follow the layer table of CONTRIBUTING.md: check_includes.py <root of the project>"""

import re
import sys
from pathlib import Path

import sources

TABLE = ["| layer | what it is | may include |", "|---|---|---|"]
ROW = re.compile(r"\| `(\w+)` \| [^|]+ \| (-|`\w+`(?:, `\w+`)*) \|")
# The command line is not a layer. It has to start in milliseconds.
TOOLS = {"base", "machine", "launch", "doctor"}
WITHOUT_LIBTORCH = TOOLS | {"tools"}
LIBTORCH = re.compile(r"(torch|ATen|c10|caffe2)/")
CONCRETE_BACKEND = re.compile(r"torch/csrc/distributed/c10d/.*ProcessGroup(Gloo|NCCL|MPI|UCC)")
HIDDEN_FROM_USERS = re.compile(r"(fmt|CLI|nlohmann|curl|spdlog)/|(zlib|hdf5)\.h")
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')


class Malformed(Exception):
    pass


def layer_table(root):
    """{layer: the layers that it may include}, itself among them. Rows include only rows above, so there is no cycle."""
    path = Path(root) / "CONTRIBUTING.md"
    lines = path.read_text().splitlines() if path.is_file() else []
    for first, line in enumerate(lines):
        if line == TABLE[0] and lines[first + 1:first + 2] == TABLE[1:]:
            break
    else:
        raise Malformed(f"CONTRIBUTING.md: no layer table, which begins with {TABLE[0]!r} and {TABLE[1]!r}")
    layers = {}
    for number, line in enumerate(lines[first + 2:], first + 3):
        if not line.startswith("|"):
            break
        row = ROW.fullmatch(line)
        if not row:
            raise Malformed(f"CONTRIBUTING.md:{number}: not a row of the form \"| `name` | text | `a`, `b` |\", \"-\" for none")
        name, allowed = row[1], set(re.findall(r"\w+", row[2]))
        if name in layers:
            raise Malformed(f"CONTRIBUTING.md:{number}: a second row for {name}")
        if allowed - layers.keys():
            raise Malformed(f"CONTRIBUTING.md:{number}: {name} includes {', '.join(sorted(allowed - layers.keys()))}, "
                            "which has no row above")
        layers[name] = allowed | {name}
    if not layers:
        raise Malformed("CONTRIBUTING.md: the layer table has no rows")
    return layers


def layer_of(path):
    """("comm", public?) for include/lockstep/comm/x.h and src/comm/x.cpp; (None, ...) for files outside of all layers."""
    parts = path.parts
    if parts[:2] == ("tools", "lockstep"):
        return "tools", False
    if parts[:2] == ("include", "lockstep") and len(parts) > 3:
        return parts[2], True
    if parts[0] == "src" and len(parts) > 2:
        return parts[1], False
    return None, parts[0] == "include"


def target_layer(header, layers):
    """The layer that an included header belongs to, or None: "comm" for lockstep/comm/x.h and comm/x.h."""
    parts = header.split("/")
    if parts[0] == "lockstep":
        parts = parts[1:]
    return parts[0] if len(parts) > 1 and parts[0] in layers else None


def problem_with(layers, layer, public, quote, header):
    """The problem with one include, or None."""
    if ".." in header.split("/"):
        return "goes up with .."
    if public and (quote == '"' or HIDDEN_FROM_USERS.match(header)):
        return "is not for public headers"
    if layer is None:
        return None
    if header == "lockstep/lockstep.h":
        return "is for users only"
    if layer in WITHOUT_LIBTORCH and LIBTORCH.match(header):
        return f"is LibTorch, which {layer} must not use"
    if layer == "comm" and CONCRETE_BACKEND.match(header):
        return "is a concrete backend, which comm must not know"
    target = target_layer(header, layers)
    allowed = TOOLS if layer == "tools" else layers[layer]
    if target is not None and target not in allowed:
        return f"is not allowed by the layer table of CONTRIBUTING.md: {layer} may include {', '.join(sorted(allowed))}"
    return None


def problems(root):
    try:
        layers = layer_table(root)
    except Malformed as error:
        return [str(error)]
    found = []
    for path in sources.cpp_files(root):
        relative = path.relative_to(root)
        layer, public = layer_of(relative)
        if layer not in layers and layer not in (None, "tools"):
            found.append(f"{relative}: {layer} is not in the layer table of CONTRIBUTING.md")
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            include = INCLUDE.match(line)
            problem = include and problem_with(layers, layer, public, *include.groups())
            if problem:
                found.append(f"{relative}:{number}: {include[2]} {problem}")
    return found


if __name__ == "__main__":
    sources.finish(problems(sys.argv[1]), "all includes follow the layer table")
