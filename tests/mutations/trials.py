# SPDX-License-Identifier: BSD-3-Clause
"""Runs tests of a build with one mutant in effect. A test is a suite of a googletest program."""

import contextlib
import json
import os
import re
import selectors
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

MARK = "LOCKSTEP_MUTATION_TRIAL"
KEPT = 1 << 16  # bytes of output


class Test(NamedTuple):
    name: str
    command: list
    folder: str
    environment: dict
    limit: float  # seconds, of ctest
    seconds: float = 0  # without a mutant
    reached: frozenset = frozenset()  # numbers of mutants


class Outcome(NamedTuple):
    passed: bool
    timed_out: bool
    seconds: float
    output: str


def suites_of(program):
    """The suites of a googletest program: lines that end with a dot, or have "# TypeParam" after it."""
    listed = subprocess.run([program, "--gtest_list_tests"], check=True, capture_output=True, text=True)
    return [found[1] for found in re.finditer(r"^([\w/]+)\.(?: +#.*)?$", listed.stdout, re.M)]


def tests_of(build, programs):
    """The suites of these programs. A mutant runs only those that reach it, so ctests of whole programs are split."""
    listed = subprocess.run(["ctest", "--test-dir", str(build), "--show-only=json-v1"], check=True, capture_output=True, text=True)
    found = []
    for test in json.loads(listed.stdout)["tests"]:
        command = test.get("command")
        if not command or test["name"].split(".")[0] not in programs:
            continue
        properties = {each["name"]: each["value"] for each in test["properties"]}
        environment = dict(each.split("=", 1) for each in properties.get("ENVIRONMENT", []))
        program, suite = test["name"].split(".", 1)
        for each in suites_of(command[0]) if suite == "all" else [suite]:
            alone = [command[0], f"--gtest_filter={each}.*", "--gtest_fail_fast"]
            found.append(Test(f"{program}.{each}", alone, properties.get("WORKING_DIRECTORY", str(build)), environment, properties.get("TIMEOUT", 600)))
    missing = set(programs) - {test.name.split(".")[0] for test in found}
    if missing:
        raise SystemExit(f"{build} has no tests of {', '.join(sorted(missing))}: configure it with -DLOCKSTEP_BUILD_TESTS=ON")
    return found


def marked_processes(mark):
    """Processes with this mark in their environment: also those that left the group of processes."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    yield int(entry.name)


def kill_all(mark):
    for _ in range(20):
        found = list(marked_processes(mark))
        for process in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        if not found:
            return
        time.sleep(0.05)


def run(test, limit, **variables):
    """Runs the test with more environment variables. All of its processes have ended afterwards."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutant", ignore_cleanup_errors=True) as folder:
        trial = f"{os.getpid()}-{Path(folder).name}"
        environment = {**os.environ, **test.environment, **variables, MARK: trial, "TMPDIR": folder}
        process = subprocess.Popen(test.command, cwd=test.folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, start_new_session=True)
        # A mutant that allocates without end is what the kernel kills first.
        with contextlib.suppress(OSError):
            Path(f"/proc/{process.pid}/oom_score_adj").write_text("1000")
        try:
            output, timed_out = read_output(process, start + limit)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            kill_all(f"{MARK}={trial}".encode())
            process.wait()
            process.stdout.close()
    return Outcome(process.returncode == 0 and not timed_out, timed_out, time.monotonic() - start, output)


def read_output(process, deadline):
    """The last output of a process until it ends, or until the deadline, and whether that came first."""
    kept = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        open_pipe = True
        while process.poll() is None:
            if time.monotonic() > deadline:
                return kept.decode(errors="replace"), True
            if not open_pipe:
                time.sleep(0.02)
            elif selector.select(0.1):
                part = os.read(process.stdout.fileno(), KEPT)
                open_pipe = bool(part)
                if not part:
                    selector.unregister(process.stdout)
                kept = (kept + part)[-KEPT:]
        while open_pipe and selector.select(0):
            part = os.read(process.stdout.fileno(), KEPT)
            open_pipe = bool(part)
            kept = (kept + part)[-KEPT:]
    return kept.decode(errors="replace"), False


def without_mutant(test):
    """The test with its time and the mutants that it reaches; or the output of a test that fails."""
    with tempfile.TemporaryDirectory(prefix="reached") as folder:
        file = Path(folder) / "numbers"
        outcome = run(test, test.limit, LOCKSTEP_MUTANTS_REACHED=str(file))
        if not outcome.passed:
            return outcome
        numbers = file.read_text().split() if file.exists() else []
        return test._replace(seconds=outcome.seconds, reached=frozenset(map(int, numbers)))


def failed_case(test, output):
    case = re.search(r"\[  FAILED  \] (\S+?)(?:,| \(|$)", output, re.M) or re.search(r".*\[ RUN      \] (\S+)", output, re.S)
    return f"{test.name.split('.')[0]}: {case[1]}" if case else test.name


def judge(number, tests):
    """(verdict, the test that noticed the mutant): runs those that reach it, the shortest first."""
    for test in sorted((test for test in tests if number in test.reached), key=lambda test: test.seconds):
        outcome = run(test, min(test.limit, 3 * test.seconds + 20), LOCKSTEP_MUTANT=str(number))
        if not outcome.passed:
            return "timeout" if outcome.timed_out else "killed", failed_case(test, outcome.output)
    return "survived", ""
