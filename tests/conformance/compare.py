# SPDX-License-Identifier: BSD-3-Clause
"""Runs PyTorch's DistributedTest with Gloo and with a backend of Lockstep in its place, and compares:
compare.py shm|hierarchical <ranks> [test...]

Fails when a test passes with Gloo but not with ours, and when too few pass with Gloo. PYTHONPATH holds lockstep_torch and expecttest.
"""

import os
import subprocess
import sys
import tempfile

# What Gloo passes and ours need not.
EXCEPTIONS = {
    "test_ddp_logging_data_cpu": "expects the number of Gloo's threads, which DDP's logger reads from Gloo's options",
}

# Seconds; PyTorch ends a single test after some minutes.
TIMEOUT = 3600
# With Gloo at least so many pass; fewer would say little about ours.
LEAST = 85


def run(backend, ranks, tests):
    """The state of each test: passed, failed or skipped."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("barrier", "test_dir"):
            os.mkdir(os.path.join(folder, name))
        environment = dict(
            os.environ, CONFORMANCE=backend, WORLD_SIZE=ranks, TEMP_DIR=folder, OMP_NUM_THREADS="1")
        program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_tests.py")
        result = subprocess.run(
            [sys.executable, program, *tests], cwd=folder, env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=TIMEOUT)
    lines = [line.split() for line in result.stdout.splitlines()]
    states = {line[1]: line[0] for line in lines if len(line) == 2 and line[0] in ("passed", "failed", "skipped")}
    if not states:
        sys.exit(f"no test ran with {backend}:\n{result.stderr}")
    return states


def main(backend, ranks, *tests):
    gloo = run("gloo", ranks, tests)
    ours = run(backend, ranks, tests)
    expected = [name for name, state in gloo.items() if state == "passed"]
    missing = [name for name in expected if ours.get(name) != "passed" and name not in EXCEPTIONS]
    print(f"{ranks} ranks: {len(expected)} tests pass with gloo, {sum(ours.get(name) == 'passed' for name in expected)} of "
          f"them with {backend}")
    for name in missing:
        print(f"not with {backend}: {name}")
    for name in EXCEPTIONS.keys() & set(expected):
        print(f"exception: {name} {EXCEPTIONS[name]}")
    least = len(tests) or LEAST
    if len(expected) < least:
        print(f"only {len(expected)} tests pass with gloo, not {least}")
    sys.exit(1 if missing or len(expected) < least else 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
