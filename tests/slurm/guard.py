# SPDX-License-Identifier: BSD-3-Clause
"""Starts processes for its caller and kills them, with all that they started, when its caller closes the pipe or dies.

A line on stdin is a JSON array: the file for the output, then a command. SLURM's daemons start programs as processes
that belong to nobody, which is why this process adopts them.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans():
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def dying_with_parent(command):
    return ["setpriv", "--pdeathsig", "KILL", *command]


def start(log, *command):
    with open(log, "ab") as output:
        return subprocess.Popen(
            dying_with_parent(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def kill_all():
    """A child that dies leaves its own children to us."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    try:
        while True:
            for pid in children.read_text().split():
                os.kill(int(pid), signal.SIGKILL)
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(0.01)
    except ChildProcessError:
        pass


def main():
    adopt_orphans()
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)  # the end of the pipe is what counts
    started = []
    try:
        for line in sys.stdin:
            started.append(start(*json.loads(line)))
    finally:
        kill_all()


if __name__ == "__main__":
    main()
