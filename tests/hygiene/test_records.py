# SPDX-License-Identifier: BSD-3-Clause
"""Benchmarks with --record write runs that docs/benchmarks.md can show: their programs are replaced by made-up results."""

import contextlib
import importlib
import io
import json
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
import bench_support
import comm_runs
import make_page
import mnist_runs
import records


class Results(dict):
    """The results of a program, where every key is there."""

    def __missing__(self, key):
        return [1.25, 1.5] if key in ("losses", "microseconds_with", "microseconds_without") else 2.5

    def __contains__(self, key):
        return True


class Plans:
    CHOICE = {"dp": 2, "pp": 1, "cp": 1, "tp": 1, "ep": 1, "data_parallel": "replicas", "microbatches": 1, "step_seconds": 0.5}

    def __init__(self, flags):
        pass

    def choices(self):
        return [self.CHOICE]

    def growth(self, choice):
        return 2 ** 20


def collectives(names, sizes, ranks, backends, rounds, timeout):
    return {(name, 0 if name == "barrier" else size, ranks, who): [1.5] * rounds for name in names for size in sizes
            for who in ("gloo", "mpi", "ordinary", "zero-copy", "limit")}


REDUCED = [{"backend": name, "microseconds": 1.5} for name in ("shm", "gloo")]
FAKES = {"launch": lambda *arguments: [Results()], "run_pinned": lambda *arguments: [Results()], "objects": lambda output: [Results()],
         "finished": lambda *arguments, **more: json.dumps(REDUCED), "wall_seconds": lambda *arguments: 0.5, "program": str, "cores": range}
# What stands for functions of a benchmark itself.
OWN = {"checkpoint": {"run": lambda *arguments: dict.fromkeys(("save", "save_over", "load", "load_mmap", "open_safetensors", "async_stall"), [0.5])},
       "folders": {"opening": lambda *arguments: 0.5, "make_files": lambda *arguments: None, "SECONDS_UNTIL_CACHED": 0},
       "gpt": {"lockstep": lambda *arguments: Results()},
       "hosts": {"two_hosts": contextlib.nullcontext, "times": lambda *arguments: {1024: {"gloo": 2.5, "hierarchical": 1.5}},
                 "socket_times": lambda *arguments: {1024: 1.5}, "traffic": lambda *arguments: 10,
                 "ddp_steps": lambda flags: {"PyTorch, gloo": 2.5, "gloo": 1.5}},
       "images": {"measure": lambda *arguments: (100.5, 200.5), "growth": lambda *arguments: (100, 101)},
       "meshes": {"Plans": Plans, "step_seconds": lambda *arguments: 0.5, "measured_growth": lambda *arguments: 2 ** 21},
       "mpi": {"all_reduces": lambda timeout: {("MPI_Allreduce", 1024): {"mpi": 1.5, "lockstep": 2.5}}, "steps": lambda *arguments: Results()},
       "observe": {"milliseconds_of_top": lambda *arguments: ([2.5, 3.5], 0)},
       "python": {"run": lambda *arguments: Results(seconds=dict.fromkeys(("shm", "gloo", "unreduced", "callback", "direct"), 0.5)),
                  "are_equal": lambda *arguments: True},
       "restart": {"seconds_to_restart": lambda *arguments: 0.5}}
TOPICS = {"amp": {"amp", "amp_accuracy"}, "mnist": {"mnist", "ddp_overhead"}, "pipeline": {"pipeline", "pipeline_ranks"},
          "sharded": {"sharded", "sharded_memory"}, "python": {"python", "python_calls"}, "hosts": {"hosts", "hosts_ddp"},
          "comm": {"all_reduce", "all_reduce_many_ranks", "collectives"},
          **{name: {name} for name in ("checkpoint", "data_parallel", "ddp", "folders", "gloo", "gpt", "images", "meshes", "mlp", "mpi", "observe", "restart",
                                       "startup", "sync_batch_norm", "tensor_parallel")}}


class Records(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        for name, fake in FAKES.items():
            self.replace(bench_support, name, fake)
        self.replace(mnist_runs, "download", lambda flags: None)
        self.replace(records, "RESULTS", self.folder)
        for name, fake in (("interleave", collectives), ("has_mpi", lambda: True), ("mpi_version", lambda: "Open MPI")):
            self.replace(comm_runs, name, fake)

    def replace(self, owner, name, fake):
        patch = mock.patch.object(owner, name, fake)
        patch.start()
        self.addCleanup(patch.stop)

    def recorded(self, name, *arguments):
        """{topic: run} of a benchmark."""
        for path in self.folder.iterdir():
            path.unlink()
        module = importlib.import_module(f"run_{name}")
        with mock.patch.object(sys, "argv", [f"run_{name}.py", "--record", "--rounds", "2", *arguments]), \
                mock.patch.dict(vars(module), OWN.get(name, {})), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            module.main()
        for path in self.folder.iterdir():
            self.assertEqual(records.problems(path), [])
        return {run["topic"]: run for run in records.load(self.folder).values()}

    def shown(self, runs):
        """The page's lines of these runs."""
        lines = map(make_page.shown, (ROOT / "benchmarks" / "page.md").read_text().splitlines())
        return [line for what in lines if what and what.topic in runs for line in make_page.topic_lines(what, runs)]

    def test_run(self):
        run = self.recorded("startup", "--timeout", "9")["startup"]
        self.assertEqual(run["command"], "scripts/bench.sh startup --rounds 2 --timeout 9")
        self.assertEqual((run["rounds"], run["compared_with"]), (2, None))
        self.assertEqual(run["tables"][0]["rows"], [[[0.5, 0.5], [0.5, 0.5]]])

    def test_page(self):
        for name, topics in TOPICS.items():
            with self.subTest(name=name):
                runs = self.recorded(name)
                self.assertEqual(set(runs), topics)
                self.shown(runs)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
