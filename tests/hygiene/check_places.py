# SPDX-License-Identifier: BSD-3-Clause
"""The library's own calls on a process group name a line of the program: check_places.py <root of the project>

Note [Places of calls] in src/communication/comm/call_site.h. A call passes the place that its function has taken
from the caller, or a CallSite stands a few lines above it. std::source_location::current() is a default argument.
"""

import re
import sys
from pathlib import Path

import sources

CALLS = ("all_reduce|broadcast|reduce|all_gather|all_gather_into_tensor|gather|scatter|reduce_scatter"
         "|reduce_scatter_tensor|all_to_all|all_to_all_single|send|recv|barrier|monitored_barrier|all_gather_object"
         "|broadcast_object|gather_object|scatter_object")
GROUPS = r"(?:\w*group\w*|\w*ranks|host_?|replicas|\w*group\(\))"
CALL = re.compile(rf"\b{GROUPS}(?:\.|->)(?:{CALLS})(?:_async)?\(")
ABOVE = 12  # lines
# The layers below: they pass on the places of calls.
BELOW = ("src/communication/comm/", "src/communication/backends/")
# The callers of their functions keep a CallSite.
CALLERS_KEEP_IT = {"src/kit/checkpoint/share.cpp", "src/kit/checkpoint/training_state.cpp", "src/kit/metrics/class_metrics.cpp",
                   "src/kit/metrics/sum_over_ranks.cpp",
                   "src/kit/training/trainer_checks.cpp", "src/parallel/fsdp/sharded_state_dict.cpp",
                   "src/parallel/fsdp/state_dict.cpp", "src/parallel/pipelining/shared_gradients.cpp"}


def arguments(text, begin):
    """The text from `begin`, which is behind a bracket, to the bracket that closes it."""
    depth = 1
    for end in range(begin, len(text)):
        depth += {"(": 1, ")": -1}.get(text[end], 0)
        if depth == 0:
            return text[begin:end]
    return text[begin:]


def problems_of(name, text):
    found = []
    if name.endswith(".cpp") and "source_location::current()" in text:
        found.append(f"{name}: source_location::current() is a line of this file; take the caller's")
    if name.startswith(BELOW) or name in CALLERS_KEEP_IT:
        return found
    lines = text.splitlines()
    for match in CALL.finditer(text):
        line = text.count("\n", 0, match.start())
        near = "\n".join(lines[max(0, line - ABOVE):line])
        passed = arguments(text, match.end())
        is_call = passed and "calls_" not in passed  # else a function of fully_shard()'s groups of parameters
        if is_call and "where" not in passed and "CallSite" not in near:
            found.append(f"{name}:{line + 1}: {match.group()}...) has no place; pass the caller's or keep a CallSite")
    return found


def problems(root):
    return [problem for path in sources.files(root) if path.suffix in sources.CPP
            for name in [str(path.relative_to(root))] if name.startswith("src/")
            for problem in problems_of(name, path.read_text())]


if __name__ == "__main__":
    sources.finish(problems(Path(sys.argv[1])), "calls of the library name lines of the program")
