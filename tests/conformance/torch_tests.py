# SPDX-License-Identifier: BSD-3-Clause
"""Runs tests of PyTorch's DistributedTest with Gloo, or with a backend of Lockstep in its place.

    CONFORMANCE=gloo|shm|hierarchical WORLD_SIZE=3 TEMP_DIR=<folder> torch_tests.py [test...]
"""

import os
import sys
import unittest
from datetime import timedelta
from types import SimpleNamespace

os.environ.setdefault("BACKEND", "gloo")
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")

import torch.distributed as dist
import torch.multiprocessing
import torch.distributed.distributed_c10d as c10d
from torch.testing._internal.distributed import distributed_test

NAME = os.environ["CONFORMANCE"]

# PyTorch's checks of a backend's identity compare with Gloo's names, so ours takes them.
if NAME != "gloo":
    from lockstep_torch import _C
    from torch._C._distributed_c10d import Backend

    # init_process_group() fills in options that only Gloo has.
    Backend.options = property(lambda backend: SimpleNamespace())

    class _AnyBackend(type):
        def __instancecheck__(cls, instance):
            return isinstance(instance, Backend)

    class _OursAsGloo(metaclass=_AnyBackend):
        def __new__(cls, store, rank, size, timeout=timedelta(minutes=30), enable_reconfigure=False):  # from torch 2.15 on
            assert not enable_reconfigure
            if NAME == "hierarchical":  # hosts of two ranks, and the last one of one or two; two ranks are on two hosts
                own, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (rank, size)
                os.environ["LOCKSTEP_HOST_ID"] = str(own // (2 if ranks > 2 else 1))
                os.environ["GLOO_SOCKET_IFNAME"] = "lo"
            return _C.create_backend(NAME, store, rank, size, timeout, "default", False)

    c10d.ProcessGroupGloo = _OursAsGloo
    find_events = distributed_test.get_profiling_event

    def find_renamed(name, *args, **kwargs):
        events = find_events(name.replace("gloo:", NAME + ":"), *args, **kwargs)
        for event in events:
            event.name = event.name.replace(NAME + ":", "gloo:")
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
