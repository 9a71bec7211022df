# SPDX-License-Identifier: BSD-3-Clause
"""Runs tests of PyTorch's DistributedTest with Gloo, or with the shm backend in its place.

    CONFORMANCE=shm|gloo WORLD_SIZE=3 TEMP_DIR=<folder> torch_tests.py [test...]
"""

import os
import sys
import unittest
from datetime import timedelta
from types import SimpleNamespace

os.environ.setdefault("BACKEND", "gloo")
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")

import torch.multiprocessing
import torch.distributed.distributed_c10d as c10d
from torch.testing._internal.distributed import distributed_test

# PyTorch's checks of a backend's identity compare with these names, so shm takes Gloo's.
if os.environ["CONFORMANCE"] == "shm":
    from lockstep_torch import _C
    from torch._C._distributed_c10d import Backend

    # init_process_group() fills in options that only Gloo has.
    Backend.options = property(lambda backend: SimpleNamespace())

    class _AnyBackend(type):
        def __instancecheck__(cls, instance):
            return isinstance(instance, Backend)

    class _ShmAsGloo(metaclass=_AnyBackend):
        def __new__(cls, store, rank, size, timeout=timedelta(minutes=30)):
            return _C.create_backend("shm", store, rank, size, timeout, "default")

    c10d.ProcessGroupGloo = _ShmAsGloo
    find_events = distributed_test.get_profiling_event

    def find_renamed(name, *args, **kwargs):
        events = find_events(name.replace("gloo:", "shm:"), *args, **kwargs)
        for event in events:
            event.name = event.name.replace("shm:", "gloo:")
        return events

    distributed_test.get_profiling_event = find_renamed


class TestDistBackendWithFork(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        # Forks of a process that has imported torch start in a fraction of a second.
        self._start_processes(torch.multiprocessing.get_context("fork").Process)


class Results(unittest.TextTestResult):
    """Prints one line a test: passed, failed or skipped, and its name."""

    def stopTest(self, test):
        super().stopTest(test)
        bad = any(test is entry[0] for entry in self.failures + self.errors)
        skipped = any(test is entry[0] for entry in self.skipped)
        state = "failed" if bad else "skipped" if skipped else "passed"
        print(state, test._testMethodName, file=sys.stdout, flush=True)


if __name__ == "__main__":
    names = sys.argv[1:] or unittest.TestLoader().getTestCaseNames(TestDistBackendWithFork)
    suite = unittest.TestSuite(TestDistBackendWithFork(name) for name in names)
    result = unittest.TextTestRunner(resultclass=Results).run(suite)
    sys.exit(0 if result.wasSuccessful() else 1)
