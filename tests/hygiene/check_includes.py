# SPDX-License-Identifier: BSD-3-Clause
"""Includes follow the arrows between the layers: check_includes.py <root of the project>"""

import re
import sys

import sources

# Layer: the layers whose headers it may include besides its own. A new layer is a new line here.
ARROWS = {
    "base": set(),
    "optim": {"base"},
    "device": {"base", "optim"},
    "comm": {"base", "device"},
    "backends": {"base", "device", "comm"},
    "rendezvous": {"base", "device", "comm", "backends", "launch"},
    "nn": {"base", "device", "comm", "backends", "rendezvous"},
    "ddp": {"base", "device", "comm", "backends", "rendezvous", "nn"},
    "amp": {"base", "optim", "device", "comm", "serialize"},
    "train": {
        *("base", "optim", "device", "amp", "comm", "backends", "rendezvous", "ddp", "nn", "data", "serialize"),
        "checkpoint",
    },
    "data": {"base", "device"},
    "serialize": {"base"},
    "checkpoint": {"base", "optim", "device", "amp", "comm", "backends", "rendezvous", "nn", "data", "serialize"},
    "machine": {"base"},
    "launch": {"base", "machine"},
}
# The command line is no layer, but has to start in milliseconds all the same.
TOOLS = {"base", "machine", "launch"}
WITHOUT_LIBTORCH = {"base", "machine", "launch", "tools"}
LIBTORCH = re.compile(r"(torch|ATen|c10|caffe2)/")
CONCRETE_BACKEND = re.compile(r"torch/csrc/distributed/c10d/.*ProcessGroup(Gloo|NCCL|MPI|UCC)")
HIDDEN_FROM_USERS = re.compile(r"(fmt|CLI|nlohmann|curl|spdlog)/|zlib\.h")
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')


def layer_of(path):
    """("comm", public?) for include/lockstep/comm/x.h and src/comm/x.cpp; (None, ...) for what is in no layer."""
    parts = path.parts
    if parts[:2] == ("tools", "lockstep"):
        return "tools", False
    if parts[:2] == ("include", "lockstep") and len(parts) > 3:
        return parts[2], True
    if parts[0] == "src" and len(parts) > 2:
        return parts[1], False
    return None, parts[0] == "include"


def target_layer(header):
    """The layer that an included header belongs to, or None: "comm" for lockstep/comm/x.h and comm/x.h."""
    parts = header.split("/")
    if parts[0] == "lockstep":
        parts = parts[1:]
    return parts[0] if len(parts) > 1 and parts[0] in ARROWS else None


def problem_with(layer, public, quote, header):
    """What is wrong with one include, or None."""
    if ".." in header.split("/"):
        return "goes up with .."
    if public and (quote == '"' or HIDDEN_FROM_USERS.match(header)):
        return "is not for public headers"
    if layer is None:
        return None
    if header == "lockstep/lockstep.h":
        return "is for users only"
    if layer in WITHOUT_LIBTORCH and LIBTORCH.match(header):
        return f"is LibTorch, which {layer} does without"
    if layer == "comm" and CONCRETE_BACKEND.match(header):
        return "is a concrete backend, of which comm knows nothing"
    target = target_layer(header)
    allowed = TOOLS if layer == "tools" else ARROWS[layer] | {layer}
    if target is not None and target not in allowed:
        return f"goes against the arrows: {layer} may include {', '.join(sorted(allowed))}"
    return None


def problems(root):
    found = []
    for path in sources.cpp_files(root):
        relative = path.relative_to(root)
        layer, public = layer_of(relative)
        if layer not in ARROWS and layer not in (None, "tools"):
            found.append(f"{relative}: {layer} is no layer that {__file__} knows")
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            include = INCLUDE.match(line)
            problem = include and problem_with(layer, public, *include.groups())
            if problem:
                found.append(f"{relative}:{number}: {include[2]} {problem}")
    return found


if __name__ == "__main__":
    sources.finish(problems(sys.argv[1]), "all includes follow the arrows")
