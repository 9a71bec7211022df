#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Time from `kill -9` of the launcher, its guard or a rank to the end of the last process of the run, for ranks under
`lockstep run` whose children have sessions of their own and ignore signals."""
import argparse
import os
import pathlib
import signal
import statistics
import subprocess
import time

import bench_support as bench

GOAL_SECONDS = 2
FAMILY = ("(setsid sh -c 'trap \"\" TERM INT HUP; sleep 1000; sleep 1000' &); (trap '' TERM INT HUP; sleep 1000) & "
          "echo up; exec sleep 1000")


def parse_flags():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="kills of each kind")
    parser.add_argument("--ranks", type=int, default=4)
    return parser.parse_args()


def family(marker):
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if marker in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                pass
    return found


def parent_of(pid):
    return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def victims(launcher, marker):
    guard = next(pid for pid in family(marker) if parent_of(pid) == launcher)
    rank = next(pid for pid in family(marker) if parent_of(pid) == guard)
    return {"the launcher": launcher, "its guard": guard, "a rank": rank}


def seconds_to_nothing(kind, ranks):
    marker = f"BENCH_MARKER={os.getpid()}.{time.monotonic_ns()}"
    name, value = marker.split("=")
    command = [bench.program("lockstep"), "run", "--nproc-per-node", str(ranks), "--", "sh", "-c", FAMILY]
    with subprocess.Popen(command, env=os.environ | {name: value}, text=True, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        for _ in range(ranks):
            process.stdout.readline()
        victim = victims(process.pid, marker.encode())[kind]
        start = time.perf_counter()
        os.kill(victim, signal.SIGKILL)
        process.wait()
        while family(marker.encode()):
            time.sleep(0.001)
        return time.perf_counter() - start


def main():
    flags = parse_flags()
    for kind in ("the launcher", "its guard", "a rank"):
        bench.progress(f"killing {kind} {flags.rounds} times")
        values = [seconds_to_nothing(kind, flags.ranks) for _ in range(flags.rounds)]
        met = "met" if max(values) <= GOAL_SECONDS else "missed"
        print(f"kill -9 of {kind:13} median {statistics.median(values):.3f} s, at most {max(values):.3f} s "
              f"(goal: {GOAL_SECONDS} s, {met})")


if __name__ == "__main__":
    main()
