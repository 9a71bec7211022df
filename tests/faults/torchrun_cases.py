# SPDX-License-Identifier: BSD-3-Clause
"""Runs torchrun with many command lines: torchrun_cases.py <cases.json>.

The file holds a list of {"launcher": "run" or "launch", "arguments": [...], "environment": {...}}. Each is run in a
child of this process, which has imported torch once for all. Prints one line a case: its exit code."""

import json
import os
import sys

import torch.distributed.launch
import torch.distributed.run


def is_known(argument):
    """torchrun has this option, which changes nothing in these runs, since 2.12."""
    parser = torch.distributed.run.get_args_parser()
    return not argument.startswith("--shutdown-timeout") or "--shutdown-timeout" in parser.format_help()


def run(case):
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.environ.update(case["environment"])
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    launcher = torch.distributed.run if case["launcher"] == "run" else torch.distributed.launch
    code = 1
    try:
        launcher.main([argument for argument in case["arguments"] if is_known(argument)])
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    finally:
        os._exit(code)


with open(sys.argv[1]) as file:
    for case in json.load(file):
        print(run(case), flush=True)
