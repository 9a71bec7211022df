# SPDX-License-Identifier: BSD-3-Clause
"""Writes events of runs of several nodes, a line each: launcher_seeds.py <folder>"""
import json
import pathlib
import re
import sys

FORMATS = (pathlib.Path(__file__).resolve().parents[2] / "src/foundation/base/version.h").read_text()
HELLO = {"kind": "hello", "protocol": int(re.search(r'"message between launchers", (\d+)', FORMATS)[1]), "lockstep": "0.1", "run_id": "r",
         "min_nodes": 2, "max_nodes": 2, "max_restarts": 1, "node_rank": None, "ranks": 2, "role": "default", "host": "a", "is_host": True,
         "grace_period_ms": 5000, "challenge": "c", "proof": "p", "purpose": 0, "look": 0, "asked": 0}
MESSAGES = [HELLO, HELLO | {"protocol": 70}, {"kind": "reserved", "address": "a", "port": 1}, {"kind": "stopped", "attempt": 0},
            {"kind": "finished", "attempt": 0}, {"kind": "leaving", "reason": "r", "signal": 15}, {"kind": "reserve"},
            {"kind": "notice", "text": "t"}, {"kind": "alive"}, {"kind": "refused", "reason": "r"}, {"kind": "welcome", "proof": "p", "silence_limit_ms": 1},
            {"kind": "stop", "attempt": 0, "notice": "n", "signal": 0}, HELLO | {"purpose": 2, "look": 1, "asked": 1},
            {"kind": "look", "id": 1, "host": 1, "first_rank": 2, "ranks": 2},
            {"kind": "seen", "host": 1, "name": "b", "problem": "", "parts": 2, "text": "{}", "after_ms": 5}]
# Two nodes, in one case three: a run that succeeds, one that restarts, one that loses a node, one that another joins.
JOINED = ["j0", "j1", "+0\x1f"]
RUNS = {"succeeds": [*JOINED, "r0", "e0", "e1"],
        "restarts": [*JOINED, "r0", "f1", "s1", "s0", "r0", "c0", "f1", "s0", "s1", "r0", "e1", "e0"],
        "loses": [*JOINED, "r0", "x1gone", "s0", "j1", "+0\x1f", "r0", "l0end"],
        "grows": [*JOINED, "r0", "j2", "+0\x02", "s0", "s1", "r0", "e0", "e1", "e2"],
        "hangs": [*JOINED, "+0\x7f", "r0", "f0", "+0\x7f"]}


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, events in RUNS.items():
        for first in ("\x01\x01\x00", "\x02\x01\x00"):
            (folder / f"{name}{ord(first[0])}").write_text("\n".join([first, *events]) + "\n")
    for number, message in enumerate(MESSAGES):
        lines = ["\x01\x01\x00", *JOINED, "r0", f"d0{json.dumps(message)}", f"m1{json.dumps(message)}"]
        (folder / f"message{number}").write_text("\n".join(lines) + "\n")


main()
