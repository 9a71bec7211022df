# SPDX-License-Identifier: BSD-3-Clause
"""candidates.py finds what can be broken, and nothing else; every layer and program of layers.py is there; trials.py judges by the
shortest test that fails, and leaves no process."""

import re
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/mutations"), str(ROOT / "tests/hygiene")]
import check_includes
import layers
import mutate
import scratch
import trials
from candidates import candidates


def found(body, *kinds):
    """{(before, after)} of a function with this body."""
    text = f"void f() {{\n  {body}\n}}\n"
    return {(each.before, each.after) for each in candidates(text) if not kinds or each.kind in kinds}


class Candidates(unittest.TestCase):
    def test_operands_of_operators(self):
        self.assertEqual(found("return a + b < c - 1;", "comparison"), {("a + b < c - 1", "a + b <= c - 1")})
        self.assertEqual(found("x = a && b || c;", "logical"), {("a && b", "a || b"), ("a && b || c", "a && b && c")})
        self.assertEqual(found("g(h(a, b) == 0, c);", "comparison"), {("h(a, b) == 0", "h(a, b) != 0")})
        self.assertEqual(found("for (int i = z; i < n; ++i) h(i);", "comparison"), {("i < n", "i <= n")})
        self.assertEqual(found("if (a) {\n  b();\n}\nx += y;", "arithmetic"), {("x += y", "x -= y")})

    def test_no_operators(self):
        self.assertEqual(found("std::vector<int> a; T* b = c; T&& d = e; const auto f = g(*b, &d);"), set())
        self.assertEqual(found('const auto text = name + ".pt";'), set())

    def test_constants(self):
        self.assertEqual(found("g(2, true, 0.5, 'x', \"3\", 1'000);", "constant", "boolean"),
                         {("2", "2 + 1"), ("true", "false"), ("0.5", "0.5 + 1"), ("1'000", "1'000 + 1")})
        self.assertEqual(found("constexpr int k = 3; std::get<1>(a);", "constant"), set())

    def test_conditions(self):
        self.assertEqual(found("if (ready) g();", "condition"), {("ready", "!(ready)")})
        self.assertEqual(found("if (const auto x = g(); x.good()) h();", "condition"), {("x.good()", "!(x.good())")})
        self.assertEqual(found("if (const auto* x = g()) h();", "condition"), set())
        self.assertEqual(found("if (any(all, [](auto x) { return x.on; })) h();", "condition"),
                         {("any(all, [](auto x) { return x.on; })", "!(any(all, [](auto x) { return x.on; }))")})
        self.assertEqual(found("return ready ? a : b;", "condition"), {("ready", "!(ready)")})

    def test_removed_statements(self):
        self.assertEqual(found("a.b(c)->d<E>(f);\n  const Lock lock(mutex_);\n  T name(x);\n  log(LogLevel::info, g());", "removed call"),
                         {("a.b(c)->d<E>(f);", "")})
        self.assertEqual(found("if (done) return;\n  for (auto x : y) {\n    if (x) continue;\n  }\n  return;", "removed return"),
                         {("return;", ""), ("continue;", "")})
        self.assertEqual(found("if (done) {\n    g();\n    return 1;\n  }\n  return 2;", "removed return"), {("return 1;", "")})
        self.assertEqual(found("if (a) return 1; else return 2;", "removed return"), set())

    def test_texts_and_declarations_stay(self):
        self.assertEqual(found('throw_error<Error>("{}", size - 1);\n  log(LogLevel::info, fmt::format("{}", a + b));'), set())
        self.assertEqual(candidates("#if A > 1\n// a + 1\nconstexpr int kMost = 1 + 2;\nint g(int a = 1);\nstruct S { int x = 3; };\n"), [])
        self.assertTrue(candidates("S::S(int x) : a_{x}, b_(1) {\n  g(x + 1);\n}\n"))

    def test_the_lines_stay(self):
        text = "void f() {\n  if (a && b) g();\n  return;\n}\n"
        each = [each for each in candidates(text) if each.kind == "logical"][0]
        mutant = mutate.Mutant(7, "f.cpp", *(each.line, each.kind, each.start, each.end, each.before, each.after, each.code))
        changed = scratch.with_schemata(text, [mutant])
        self.assertIn("#line 1\nvoid f() {\n  if ((::lockstep_mutant(7) ? (a || b) : (a && b))) g();\n  return;\n}\n", changed)


class Layers(unittest.TestCase):
    def test_every_layer_has_programs(self):
        self.assertEqual(set(layers.PROGRAMS), set(check_includes.layer_table(ROOT)))

    def test_programs_exist(self):
        listed = "".join(path.read_text() for path in (ROOT / "tests").rglob("CMakeLists.txt"))
        known = set(re.findall(r"lockstep_add_test\((\w+)", listed))
        self.assertEqual({program for layer in layers.PROGRAMS for program in layers.programs_of(layer)} - known, set())


class Scratch(unittest.TestCase):
    def test_restores_what_an_ended_run_left(self):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            (root / "src").mkdir()
            text = "void f() { g(1); }\n"
            (root / "src/f.cpp").write_text(text)
            mutants = mutate.draw({"src/f.cpp": text}, 1, 1)
            scratch.write(root, {"src/f.cpp": text}, mutants)
            self.assertIn("lockstep_mutant(1)", (root / "src/f.cpp").read_text())
            scratch.restore(root)
            self.assertEqual([path.name for path in (root / "src").iterdir()], ["f.cpp"])
            self.assertEqual((root / "src/f.cpp").read_text(), text)


def shell(name, script, seconds=0.1, reached=()):
    return trials.Test(name, ["sh", "-c", script], "/", {}, 60, seconds, frozenset(reached))


class Trials(unittest.TestCase):
    def test_the_shortest_test_that_fails_notices(self):
        fails = 'echo "[  FAILED  ] Suite.Case (3 ms)"; test "$LOCKSTEP_MUTANT" != 4'
        tests = [shell("slow.all", fails, 2, {4}), shell("quick.all", fails, 1, {4}), shell("first.all", "true", 0.1, {4}), shell("other.all", "false", 0, {5})]
        self.assertEqual(trials.judge(4, tests), ("killed", "quick: Suite.Case"))
        self.assertEqual(trials.judge(6, tests), ("survived", ""))

    def test_reached_mutants(self):
        test = trials.without_mutant(shell("some.all", 'printf "3\\n8\\n" >> "$LOCKSTEP_MUTANTS_REACHED"'))
        self.assertEqual(test.reached, {3, 8})
        self.assertIsInstance(trials.without_mutant(shell("some.all", "false")), trials.Outcome)

    def test_time_limit(self):
        outcome = trials.run(shell("some.all", "echo begun; sleep 600"), 0.5)
        self.assertTrue(outcome.timed_out)
        self.assertFalse(outcome.passed)

    def test_no_process_is_left(self):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "number"
            script = f"setsid sh -c 'echo $$ > {file}.part; mv {file}.part {file}; sleep 600' & until test -e {file}; do sleep 0.1; done"
            self.assertTrue(trials.run(shell("some.all", script), 60).passed)
            self.assertFalse(is_running(int(file.read_text())))


def is_running(process):
    status = Path(f"/proc/{process}/stat")
    return status.exists() and status.read_text().rsplit(")", 1)[1].split()[0] != "Z"


if __name__ == "__main__":
    unittest.main()
