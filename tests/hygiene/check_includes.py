# SPDX-License-Identifier: BSD-3-Clause
"""Includes follow the layer table of CONTRIBUTING.md: check_includes.py <root of the project>"""

import re
import sys
from pathlib import Path
from typing import NamedTuple

import sources

TABLE = ["| wing | layer | what it is | may include |", "|---|---|---|---|"]
ROW = re.compile(r"\| (\w+) \| `(\w+)` \| [^|]+ \| (-|`\w+`(?:, `\w+`)*) \|")
WINGS = ("foundation", "launcher", "tensors", "communication", "parallel", "kit")
# The command line is not a layer. It has to start in milliseconds.
TOOLS = {"base", "machine", "launch", "doctor", "observe"}
WITHOUT_LIBTORCH = {"foundation", "launcher"}
# The kit knows of the wing parallel the public headers and the private ones of these layers.
OPEN_TO_KIT = {"modules", "trace"}
# Public headers whose folder is not their layer, because their paths stay.
ELSEWHERE = {"checkpoint/state_dict.h": "state", "nn/wrapped_module.h": "modules"}
UMBRELLA = re.compile(r"lockstep/(?!version\.h)\w+\.h")
LIBTORCH = re.compile(r"(torch|ATen|c10|caffe2)/")
CONCRETE_BACKEND = re.compile(r"torch/csrc/distributed/c10d/.*ProcessGroup(Gloo|NCCL|MPI|UCC)")
HIDDEN_FROM_USERS = re.compile(r"(fmt|CLI|nlohmann|curl|spdlog)/|(zlib|hdf5)\.h")
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')


class Malformed(Exception):
    pass


class Layer(NamedTuple):
    wing: str
    allowed: set  # the layers that it may include, itself among them


def layer_table(root):
    """{name: Layer}. Rows include only rows above, and wings only wings above, so there is no cycle."""
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
            raise Malformed(f"CONTRIBUTING.md:{number}: not a row of the form \"| wing | `name` | text | `a`, `b` |\", "
                            "\"-\" for none")
        wing, name, allowed = row[1], row[2], set(re.findall(r"\w+", row[3]))
        if wing not in WINGS:
            raise Malformed(f"CONTRIBUTING.md:{number}: {wing} is no wing: {', '.join(WINGS)}")
        if name in layers:
            raise Malformed(f"CONTRIBUTING.md:{number}: a second row for {name}")
        if allowed - layers.keys():
            raise Malformed(f"CONTRIBUTING.md:{number}: {name} includes {', '.join(sorted(allowed - layers.keys()))}, "
                            "which has no row above")
        below = [each for each in sorted(allowed) if WINGS.index(layers[each].wing) > WINGS.index(wing)]
        if below:
            raise Malformed(f"CONTRIBUTING.md:{number}: {name} includes {', '.join(below)}, whose wing comes after {wing}")
        layers[name] = Layer(wing, allowed | {name})
    if not layers:
        raise Malformed("CONTRIBUTING.md: the layer table has no rows")
    return layers


def layer_of(path):
    """("communication", "comm", public?) for src/communication/comm/x.cpp; the wing is None for a public header. The layer is
    None for files outside of all layers."""
    parts = path.parts
    if parts[:2] == ("tools", "lockstep"):
        return None, "tools", False
    if parts[:2] == ("include", "lockstep") and len(parts) > 3:
        return None, ELSEWHERE.get("/".join(parts[2:]), parts[2]), True
    if parts[0] == "src" and len(parts) > 3:
        return parts[1], parts[2], False
    return None, None, parts[0] == "include"


def target_layer(header, layers):
    """(layer, public?) of an included header: ("comm", True) for lockstep/comm/x.h. The layer is None if it is none of ours."""
    parts = header.split("/")
    public = parts[0] == "lockstep"
    if public:
        parts = parts[1:]
        if "/".join(parts) in ELSEWHERE:
            return ELSEWHERE["/".join(parts)], True
    return (parts[0] if len(parts) > 1 and parts[0] in layers else None), public


def problem_with(layers, layer, public, quote, header):
    """The problem with one include, or None."""
    if ".." in header.split("/"):
        return "goes up with .."
    if public and (quote == '"' or HIDDEN_FROM_USERS.match(header)):
        return "is not for public headers"
    if layer is None:
        return None
    if UMBRELLA.fullmatch(header):
        return "is for users only"
    wing = layers[layer].wing if layer in layers else "launcher"  # the tools'
    if wing in WITHOUT_LIBTORCH and LIBTORCH.match(header):
        return f"is LibTorch, which {layer} must not use"
    if layer == "comm" and CONCRETE_BACKEND.match(header):
        return "is a concrete backend, which comm must not know"
    target, target_is_public = target_layer(header, layers)
    if target is None:
        return None
    allowed = TOOLS if layer == "tools" else layers[layer].allowed
    if target not in allowed:
        return f"is not allowed by the layer table of CONTRIBUTING.md: {layer} may include {', '.join(sorted(allowed))}"
    if wing == "kit" and layers[target].wing == "parallel" and not target_is_public and target not in OPEN_TO_KIT:
        return f"is private to the wing parallel; the kit includes its public headers, and {', '.join(sorted(OPEN_TO_KIT))}"
    return None


def problems(root):
    try:
        layers = layer_table(root)
    except Malformed as error:
        return [str(error)]
    found = []
    for path in sources.cpp_files(root):
        relative = path.relative_to(root)
        wing, layer, public = layer_of(relative)
        if layer not in layers and layer not in (None, "tools"):
            found.append(f"{relative}: {layer} is not in the layer table of CONTRIBUTING.md")
            continue
        if wing is not None and layers[layer].wing != wing:
            found.append(f"{relative}: {layer} is of the wing {layers[layer].wing}, by the layer table of CONTRIBUTING.md")
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            include = INCLUDE.match(line)
            problem = include and problem_with(layers, layer, public, *include.groups())
            if problem:
                found.append(f"{relative}:{number}: {include[2]} {problem}")
    return found


if __name__ == "__main__":
    sources.finish(problems(sys.argv[1]), "all includes follow the layer table")
