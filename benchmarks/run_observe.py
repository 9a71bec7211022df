#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""What it costs that a run can be seen from outside: the parts of a step that publish something; steps of two ranks with the recorder and
without it, in alternating slices; and the processor time of `lockstep top`, which reads four ranks of examples/gpt four times a second."""
import contextlib
import fcntl
import os
import pathlib
import pty
import struct
import subprocess
import tempfile
import termios
import threading
import time

import bench_support as bench

RANKS = 4
SECONDS = 10  # of `lockstep top` in a round
INTERVAL = 0.25
SETTLING = 20  # seconds until `lockstep top` searches for ranks only every 64 s


def processor_seconds(pid):
    """The time that all threads of a process have used."""
    return time.clock_gettime((~pid << 3) | 2)  # as clock_getcpuclockid() makes it


@contextlib.contextmanager
def training():
    """The launcher of the ranks, which train."""
    with tempfile.TemporaryDirectory() as folder:
        text = pathlib.Path(folder, "text")
        text.write_text("the quick brown fox jumps over the lazy dog. " * 1000, encoding="utf-8")
        command = [bench.program("lockstep"), "run", "--nproc-per-node", str(RANKS), bench.program("gpt"), "--text", str(text), "--steps", "1000000",
                   "--context", "32", "--layers", "2", "--width", "32", "--batch-size", "4"]
        with subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL) as launcher:
            try:
                yield launcher
            finally:
                launcher.terminate()


def read_until_closed(terminal):
    with contextlib.suppress(OSError):
        while os.read(terminal, 65536):
            pass


def wait_for_ranks(launcher, timeout):
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        seen = subprocess.run([bench.program("lockstep"), "top", str(launcher.pid), "--once"], capture_output=True, text=True, check=False)
        if f"{RANKS} ranks" in seen.stdout:
            return
        time.sleep(0.2)
    raise SystemExit(f"the ranks of gpt do not train: {seen.stderr}")


@contextlib.contextmanager
def top(launcher):
    """`lockstep top` on a terminal of 80 x 24."""
    own, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = [bench.program("lockstep"), "top", str(launcher.pid), "--interval", str(INTERVAL)]
    with subprocess.Popen(command, env=os.environ | {"TERM": "xterm"}, stdin=terminal, stdout=terminal, stderr=terminal) as process:
        os.close(terminal)
        reader = threading.Thread(target=read_until_closed, args=(own,))
        reader.start()
        try:
            yield process
        finally:
            process.terminate()
            process.wait()
            reader.join()
            os.close(own)


def writable_mappings(pid):
    """The memory of ranks that a process could change."""
    lines = pathlib.Path(f"/proc/{pid}/maps").read_text(encoding="utf-8").splitlines()
    mapped = [line.split()[1] for line in lines if "/memfd:lockstep" in line]
    if not mapped:
        raise SystemExit("lockstep top has mapped no memory of ranks")
    return sum("w" in mode for mode in mapped)


def milliseconds_of_top(rounds, timeout):
    """Of processor time in a second, for each round; and whether it can write."""
    with training() as launcher:
        wait_for_ranks(launcher, timeout)
        with top(launcher) as process:
            time.sleep(SETTLING)
            found = []
            for number in range(rounds):
                bench.progress(f"round {number + 1} of {rounds}: lockstep top")
                begin, began = processor_seconds(process.pid), time.monotonic()
                time.sleep(SECONDS)
                found.append(1e3 * (processor_seconds(process.pid) - begin) / (time.monotonic() - began))
            return found, writable_mappings(process.pid)


def main():
    flags = bench.recording_parser(__doc__, rounds=10).parse_args()
    bench.progress("recorder")
    recorder = bench.launch("lockstep run", [bench.program("recorder"), "--rounds", str(flags.rounds)], 2, flags.timeout)[-1]
    of_top, writable = milliseconds_of_top(flags.rounds, flags.timeout)
    published = (recorder["nanoseconds_of_phases"] + recorder["buckets"] * recorder["nanoseconds_of_call"]) / 1e3
    with_it, without = recorder["microseconds_with"], recorder["microseconds_without"]
    tables = [bench.table("Recorder in a step, us (goal 1 for a step of 1 ms)",
                          ["a step in all", "its phases", "each of its calls", "calls"],
                          [[published, recorder["nanoseconds_of_phases"] / 1e3, recorder["nanoseconds_of_call"] / 1e3, recorder["buckets"]]]),
              bench.table("Steps of 200 linear layers of 32 x 32 on two ranks, us of processor time", ["with the recorder", "without", "with / without"],
                          [[with_it, without, bench.ratio(with_it, without)]]),
              bench.table(f"lockstep top, {RANKS} ranks, {1 / INTERVAL:.0f} times a second: ms of processor time in a second (goal 4)", ["lockstep top"],
                          [[of_top]])]
    bench.report(flags, {**recorder, "milliseconds_of_top": of_top, "writable_mappings": writable}, {"observe": tables}, [
        f"lockstep::report() of one number takes {recorder['nanoseconds_of_report']:.0f} ns, of the last of 32 names "
        f"{recorder['nanoseconds_of_report_of_the_last_name']:.0f} ns (goal 100).",
        f"Memory of ranks that lockstep top could write to: {writable} mappings (goal 0)."])


if __name__ == "__main__":
    main()
