# SPDX-License-Identifier: BSD-3-Clause
"""Tests of plan.py: what ends a program, and what the report holds then. Needs no GPU and no torch."""
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from plan import Part, Plan, Report, TimeIsOver, children, run_part  # noqa: E402

PYTHON = sys.executable
# Starts a program in a session of its own, which outlives it, and tells of it.
ORPHAN = "import subprocess; subprocess.Popen(['sleep', '1000'], start_new_session=True); print('started', flush=True)"
LIMIT = 600  # never reached


class PlanTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.file = pathlib.Path(folder.name) / "report.md"
        self.report = Report(self.file)
        self.log = self.file.with_suffix(".log")
        self.plan = Plan(self.report, self.log, LIMIT)
        self.plan.grace = 0.1

    def run_part(self, action, limit=LIMIT, least=0):
        return run_part(self.plan, Part("it", limit, action, least), None)

    def test_output_and_reason(self):
        output, problem = self.plan.run([PYTHON, "-c", "print('seen')"], LIMIT)
        self.assertEqual((output, problem), ("seen\n", None))
        output, problem = self.plan.run([PYTHON, "-c", "import sys; print('seen'); sys.exit('the reason')"], LIMIT)
        self.assertEqual((output, problem), ("seen\n", "ended with 1: the reason"))
        self.assertIn("the reason", self.log.read_text())

    def test_kills_all_children_at_the_limit(self):
        _, problem = self.plan.run([PYTHON, "-c", ORPHAN + "; import time; time.sleep(1000)"], 1)
        self.assertTrue(problem.startswith("not finished after 1 s"), problem)
        self.assertEqual(children(), set())

    def test_names_what_is_left_behind(self):
        output, problem = self.plan.run([PYTHON, "-c", ORPHAN], LIMIT)
        self.assertEqual(output, "started\n")
        self.assertTrue(problem.startswith("left processes behind"), problem)
        self.assertEqual(children(), set())

    def test_runs_together(self):
        with tempfile.TemporaryDirectory() as folder:
            # Each waits for the file of the other.
            code = ("import pathlib, sys, time; pathlib.Path(sys.argv[1]).touch()\n"
                    "while not pathlib.Path(sys.argv[2]).exists(): time.sleep(0.01)")
            a, b = f"{folder}/a", f"{folder}/b"
            ended = self.plan.run_together([[PYTHON, "-c", code, a, b], [PYTHON, "-c", code, b, a]], LIMIT)
            self.assertEqual(ended, [("", None), ("", None)])

    def test_a_part_that_fails_is_told(self):
        def action(plan, _):
            plan.report.verdict(True, "first", "")
            raise RuntimeError("the reason")
        row = self.run_part(action)
        self.assertIn("**FAILED**", row)
        self.assertIn("| **FAILED** | it | RuntimeError: the reason |", self.file.read_text())
        self.assertIn("passed", self.run_part(lambda plan, _: "well"))

    def test_a_part_ends_with_its_time(self):
        def action(plan, _):
            plan.report.verdict(True, "first", "")
            plan.run([PYTHON, "-c", "import time; time.sleep(1000)"], LIMIT)
            self.assertTrue(plan.left() < 3)
            plan.run([PYTHON, "-c", ""], LIMIT)
        row = self.run_part(action, limit=3.2)
        self.assertIn("| not complete | it |", row)
        self.assertIn("| passed | first |", self.file.read_text())

    def test_a_part_that_does_not_fit_is_not_run(self):
        row = self.run_part(lambda *_: self.fail("it ran"), least=LIMIT + 1)
        self.assertIn("| not run | it |", row)

    def test_too_little_time_starts_nothing(self):
        self.plan.end = 0
        self.assertRaises(TimeIsOver, self.plan.run, [PYTHON, "-c", ""], LIMIT)


if __name__ == "__main__":
    unittest.main()
