# SPDX-License-Identifier: BSD-3-Clause
"""Runs parts with time limits and writes a report line by line, so that no result is lost when the time ends.
Standard library only."""
import ctypes
import os
import pathlib
import signal
import subprocess
import tempfile
import time

PR_SET_CHILD_SUBREAPER = 36


class Report:
    """Writes lines to the terminal and to a file at once."""

    def __init__(self, path):
        self.path, self.failed = path, 0
        path.parent.mkdir(parents=True, exist_ok=True)

    def say(self, line=""):
        print(line, flush=True)
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(line + "\n")

    def verdict(self, passed, name, text):
        self.failed += not passed
        self.say(f"| {'passed' if passed else '**FAILED**'} | {name} | {text} |")

    def not_run(self, name, reason):
        self.say(f"| not run | {name} | {reason} |")


class TimeIsOver(Exception):
    """Too little of a part's time is left to start another program."""


def children():
    """All descendants of this process: it adopts those whose parents have ended."""
    parents = {}
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # ended meanwhile
        parents[int(stat.parent.name)] = int(fields[1])
    found, new = set(), {os.getpid()}
    while new:
        new = {pid for pid, parent in parents.items() if parent in new} - found
        found |= new
    return found


def reap():
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def left_behind(seconds):
    """The descendants that have not ended after `seconds`."""
    end = time.monotonic() + seconds
    while True:
        reap()
        alive = children()
        if not alive or time.monotonic() > end:
            return alive
        time.sleep(0.05)


def kill_children():
    """Ends every descendant. One that the kernel does not let go, as in a driver's call, is left after 10 s."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        alive = left_behind(0)
        if not alive:
            return
        for pid in alive:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        left_behind(0.2)


class Plan:
    """The time that is left, for all parts and for the one that runs, and the programs of that part."""

    grace = 5  # seconds in which the children of a program that has ended must end, too

    def __init__(self, report, log, limit, stretch=1):
        self.report, self.log, self.stretch = report, log, stretch
        self.end = self.part_end = time.monotonic() + limit
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def left(self):
        return min(self.end, self.part_end) - time.monotonic()

    def run(self, command, seconds, environment=None):
        """(output, None) or (output, reason of the failure)."""
        return self.run_together([command], seconds, environment)[0]

    def run_together(self, commands, seconds, environment=None):
        """Runs the commands at the same time; what they write also goes into the log. Those that have not ended after
        `seconds`, or at the end of the part, are killed with all their children."""
        if self.left() < 3:
            raise TimeIsOver
        seconds = min(seconds * self.stretch, self.left())
        end = time.monotonic() + seconds
        files = [(tempfile.TemporaryFile(), tempfile.TemporaryFile()) for _ in commands]
        started = [subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=out, stderr=errors,
                                    env=os.environ | (environment or {}))
                   for command, (out, errors) in zip(commands, files)]
        problems = []
        for process in started:
            try:
                code = process.wait(max(0, end - time.monotonic()))
                problems.append(f"ended with {code}" if code else None)
            except subprocess.TimeoutExpired:
                problems.append(f"not finished after {seconds:.0f} s")
        if not any(problems) and left_behind(self.grace):
            problems[0] = "left processes behind"
        kill_children()
        for process in started:
            process.poll()
        return [self.result(*each) for each in zip(commands, files, problems)]

    def result(self, command, files, problem):
        texts = []
        for file in files:
            file.seek(0)
            texts.append(file.read()[-500_000:].decode(errors="replace"))
            file.close()
        output, errors = texts
        with open(self.log, "a", encoding="utf-8") as log:
            log.write(f"$ {' '.join(map(str, command))}\n{output}{errors}\n")
        return output, problem and f"{problem}: " + " / ".join((errors or output).strip().splitlines()[-12:])


class Part:
    """action(plan, flags) runs within `limit` seconds; it is not started where less than `least` are left. It returns
    a line of what was seen, or None."""

    def __init__(self, name, limit, action, least=10, needs=None):
        self.name, self.limit, self.action, self.least, self.needs = name, limit, action, least, needs


def run_part(plan, part, flags):
    """The row of the part in the table of results."""
    report = plan.report
    if plan.end - time.monotonic() < part.least:
        return f"| not run | {part.name} | | less than {part.least} s are left |"
    failed, begin = report.failed, time.monotonic()
    limit = part.limit * plan.stretch
    plan.part_end = begin + limit
    report.say(f"### {part.name}\n")
    seen = ""
    try:
        seen = part.action(plan, flags) or ""
    except TimeIsOver:
        seen = f"not complete: its time ({limit:.0f} s, or what was left) was over"
        report.not_run("the rest", seen)
    except Exception as error:  # pylint: disable=broad-except
        report.verdict(False, part.name, f"{type(error).__name__}: {error}")
    finally:
        kill_children()
    plan.part_end = plan.end
    failures = report.failed - failed
    status = "**FAILED**" if failures else "not complete" if seen.startswith("not complete") else "passed"
    row = f"| {status} | {part.name} | {time.monotonic() - begin:.0f} s of {limit:.0f} | {seen or f'{failures} failures'} |"
    report.say(f"\n{row}\n")
    return row
