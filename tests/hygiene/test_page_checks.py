# SPDX-License-Identifier: BSD-3-Clause
"""The checks of pages, of the reference and of published figures can fail: test_page_checks.py"""

import json
import sys
import unittest

import check_benchmarks
import check_docs
import check_reference
import check_signatures
import check_torch_names
from checked_tree import SPDX, TOP, Tree

sys.path[:0] = [str(TOP / "docs/site"), str(TOP / "scripts")]
import make_reference_pages
import pages
import torch_links


class Signatures(Tree):
    def arguments(self, header, name):
        self.write("docs/site/Doxyfile", (TOP / "docs/site/Doxyfile").read_text())
        self.write("include/lockstep/a.h", f"namespace lockstep {{\n{header}\n}}\n")
        found, = check_signatures.Headers(self.root).candidates(f"lockstep::{name}", {})
        return found

    def test_arguments(self):
        found = self.arguments("struct FOptions { bool sync = true; int count = 1'000; };\n"
                               "void f(int rank, const FOptions& options = {}, std::source_location where = current());", "f")
        self.assertEqual({name: default for name, (default, _) in found.items()},
                         {"rank": "required", "sync": "true", "count": "1000"})
        self.assertEqual(list(self.arguments("struct P { int op; double lr = 1e-3; };", "P")), ["op", "lr"])

    def test_defaults(self):
        for text, expected in (("= std::nullopt", "none"), ("= std::chrono::minutes(30)", "1800 s"), ("= ReduceOp::SUM", "sum"),
                               ("= {0.9, 0.999}", "(0.9, 0.999)"), ("= at::kCPU", "cpu"), ('= "auto"', "auto"), ("= 1.0 / 3", "0.333333")):
            self.assertEqual(check_signatures.cpp_default(text), expected)

    def test_differences(self):
        theirs = {"a": "required", "b": "none", "group": "none", "c": "1"}
        ours = {name: (default, "") for name, default in (("a", "required"), ("c", "2"), ("b", "none"), ("process_group", "none"))}
        self.assertEqual(check_signatures.differences(theirs, ours, {}),
                         {"group": "named `process_group`", "c": "default `2`; PyTorch: `1`",
                          "-": "order: `a`, `c`, `b`, `process_group`"})
        self.assertEqual(check_signatures.differences({"a": "1"}, {}, {}), {"a": "missing"})
        self.assertEqual(check_signatures.differences({"a": "1"}, {"x": ("1", ""), "a": ("1", "")}, {}), {"-": "after `x`"})

    def test_problems(self):
        found = {("torch.f", "a"): "missing", ("torch.g", "a"): "missing"}
        rows = {("torch.*", "a"): ("missing", "a reason")}
        self.assertEqual(list(check_signatures.problems(found, rows)), [])
        self.assertEqual(len(list(check_signatures.problems(found, {}))), 2)
        self.assertEqual(len(list(check_signatures.problems({}, rows))), 1)
        self.assertEqual(len(list(check_signatures.problems(found, {("torch.*", "a"): ("missing", "")}))), 2)


class Reference(Tree):
    def setUp(self):
        super().setUp()
        self.write("docs/site/Doxyfile", (TOP / "docs/site/Doxyfile").read_text())

    def missing(self, header):
        self.write("include/lockstep/a.h", f"namespace lockstep {{\n{header}\n}}\n")
        found, warnings = check_reference.coverage(self.root)
        return [line.split()[-1] for kind in ("names", "members") for line in found.missing(kind)], warnings

    def test_missing(self):
        for header, names in (
            ("/// Adds.\nvoid add(int a);\nvoid add();", []),
            ("void add(int a);", ["lockstep::add"]),
            ("struct Options { int a = 0; };", ["lockstep::Options", "lockstep::Options::a"]),
            ("/// Options.\nclass Options {\n public:\n  Options();\n  ~Options();\n private:\n  int a_ = 0;\n};", []),
            ("/// A kind.\nenum class Kind { a, b };", ["lockstep::Kind::a", "lockstep::Kind::b"]),
            ("/// A net.\nclass NetImpl {};\nTORCH_MODULE(Net);", []),
            ("namespace detail { void add(int a); }", []),
        ):
            with self.subTest(header=header):
                self.assertEqual(self.missing(header), (names, []))

    def test_comment_that_doxygen_does_not_read(self):
        self.assertIn("tag <name>", "".join(self.missing("/// Writes <name>.\nvoid write();")[1]))


class Pages(Tree):
    def test_links(self):
        self.write("CONTRIBUTING.md", "text")
        self.write("docs/README.md", "# Start\n\n## Reference\n\n- [a](a.md#b)\n- [c](../CONTRIBUTING.md)\n")
        self.write("docs/a.md", "[header](../include/lockstep/ddp/a.h) [text](../notes/)\n\n```\n[no](link)\n```\n")
        self.write("include/lockstep/ddp/a.h", "")
        self.write("notes/a.txt", "")
        site = pages.Site(self.root)
        site.add("docs/README.md")
        self.assertEqual(site.texts["a.md"], "[header](api/ddp.md) text\n\n```\n[no](link)\n```\n")
        site.add_navigation()
        self.assertIn("[c](project/CONTRIBUTING.md)", site.texts["index.md"])
        self.assertTrue(site.texts["index.md"].endswith(":caption: Reference\n\nproject/CONTRIBUTING\napi/index\n```\n"))

    def test_link_to_nothing(self):
        self.write("docs/README.md", "[a](a.md)")
        with self.assertRaisesRegex(SystemExit, "docs/README.md links a.md, which does not exist"):
            pages.Site(self.root).add("docs/README.md")


class TorchNames(Tree):
    def test_table(self):
        table = self.write("names.txt", "page.html\n    json.dumps json.nothing\n    nowhere.at.all\n")
        self.assertEqual([line.split()[-1] for line in check_torch_names.problems(table)], ["json.nothing", "nowhere.at.all"])

    def test_ends_of_names(self):
        names = torch_links.Names()
        self.assertIn("torch.optim.lr_scheduler.StepLR", names.page_of("StepLR", True))
        self.assertIsNone(names.page_of("StepLR", False))
        self.assertIn("distributed.html", names.page_of("torch.distributed.all_reduce(t)", False))


class Docs(Tree):
    def setUp(self):
        super().setUp()
        self.write("src/parallel/ddp/reducer.cpp", SPDX + "// Note [The reducer]\nvoid Reducer::finish() {}\n")

    def test_accepts_what_exists(self):
        self.write("docs/internals/a.md", "Note [The reducer] in `ddp/reducer.cpp`: `Reducer::finish()`, `<name>.h`, `a + b`\n")
        self.write("docs/ddp.md", "`ddp/lost.cpp`\n")
        self.assertEqual(check_docs.problems(self.root), [])

    def test_refuses_what_does_not(self):
        for text in ("`ddp/lost.cpp`", "    lost.h  a class", "Note [Lost]", "`Reducer::lost()`", "`Lost`"):
            for page in ("CONTRIBUTING.md", "docs/decisions/a.md", "src/parallel/README.md"):
                with self.subTest(text=text, page=page):
                    self.write(page, "good\n" + text + "\n")
                    self.assertEqual(len(check_docs.problems(self.root)), 1)
                    self.assertIn(page + ":2: there is no", check_docs.problems(self.root)[0])
                    (self.root / page).unlink()

    def test_uncompiled_code(self):
        for text, problem in (("```cpp\nf();\n```\n", False), ("    $ f;g\n    rank 1 ended; ...\n", False), ("- a\n  `f();`\n", False), ("    f();  // first\n", True),
                              ("```\nf(\"a\");\n```\n", True), ("```c++\n```\n", True), ("- a\n  ```cpp\n  f();\n  ```\n", True)):
            with self.subTest(text=text):
                self.write("docs/a.md", "A page.\n\n" + text)
                self.assertEqual(["so nothing compiles it" in found for found in check_docs.problems(self.root)], [True] if problem else [])

    def test_translations(self):
        page = "# A\n\n## B\n\n```console\n# no heading\n```\n"
        self.write("docs/a.md", page)
        for text, problem in ((page.replace("B", "C"), None), (page.replace("## B", "### B"), "headings"), (page.replace("# no", "$ no"), "code")):
            with self.subTest(text=text):
                self.write("docs/a.zh.md", text)
                self.assertEqual([problem is not None and problem in found for found in check_docs.problems(self.root)], [True] if problem else [])
        (self.root / "docs/a.md").unlink()
        self.assertIn("does not exist", check_docs.problems(self.root)[0])

    def test_program_of_the_start_page(self):
        self.write("README.md", "```cpp\nint main() {}\n```\n")
        self.write("docs/start.md", "```cpp\nint main() {}\n```\n")
        self.assertEqual(check_docs.problems(self.root), [])
        self.write("docs/start.md", "```cpp\nint main() { return 1; }\n```\n")
        self.assertEqual(check_docs.problems(self.root), ["docs/start.md has not the program of README.md"])

    def test_pictures(self):
        self.write("docs/pictures/make_pictures.py", "def problems():\n    return ['a.svg']\n")
        self.assertIn("docs/pictures/a.svg is not what its script draws", check_docs.problems(self.root)[0])


class Benchmarks(Tree):
    RUN = {"topic": "ddp", "date": "2026-11-25 23:13", "commit": None, "processor": None, "libtorch": "2.13.0", "command": "a",
           "rounds": 3, "conditions": None, "compared_with": None,
           "tables": [{"title": "Steps", "columns": ["net", "times as fast", "a step, us"], "rows": [["MLP", 1.5, [3000, 1, 2000]]]}]}

    def setUp(self):
        super().setUp()
        self.record(self.RUN)
        self.write("benchmarks/page.md", "# A page\n\n{{ddp}}\n")
        self.write("README.md", "none\n")
        ranges = check_benchmarks.make_page.RANGES
        check_benchmarks.make_page.RANGES = [each for each in ranges if each.topic == "ddp"]
        self.addCleanup(setattr, check_benchmarks.make_page, "RANGES", ranges)
        self.write("docs/benchmarks.md", check_benchmarks.make_page.page(self.root / "benchmarks"))
        self.write("README.md", "\n".join(check_benchmarks.make_page.range_lines({"ddp": self.RUN})))

    def record(self, run):
        return self.write("benchmarks/results/ddp.2026-11-25T2313.json", json.dumps(run))

    def test_made(self):
        self.assertEqual(check_benchmarks.problems(self.root), [])
        self.assertIn("| MLP | 1.5 | 2 ms |", (self.root / "docs/benchmarks.md").read_text().splitlines())

    def test_newest_run(self):
        newer = self.RUN | {"date": "2026-11-26", "tables": [self.RUN["tables"][0] | {"rows": [["GPT", 1.5, None]]}]}
        self.write("benchmarks/results/ddp.2026-11-26.json", json.dumps(newer))
        page = check_benchmarks.make_page.page(self.root / "benchmarks")
        self.assertIn("| GPT | 1.5 | |", page)
        self.assertNotIn("MLP", page)

    def test_page_was_edited(self):
        self.write("docs/benchmarks.md", "# A page\n")
        self.assertIn("run python3 benchmarks/make_page.py", *check_benchmarks.problems(self.root))

    def test_readme_has_other_figures(self):
        self.write("README.md", "1.2 to 1.3\n")
        self.assertIn("README.md has not the row", check_benchmarks.problems(self.root)[0])

    def test_wrong_run(self):
        table = self.RUN["tables"][0]
        for run in ({key: value for key, value in self.RUN.items() if key != "date"}, self.RUN | {"more": 1}, self.RUN | {"topic": None},
                    self.RUN | {"rounds": "3"}, self.RUN | {"topic": "mlp"}, self.RUN | {"date": "yesterday"},
                    self.RUN | {"compared_with": "ddp.none"}, self.RUN | {"tables": [{}]},
                    self.RUN | {"tables": [table | {"rows": [["MLP", 1.5]]}]}, self.RUN | {"tables": [table | {"rows": [["MLP", 1.5, []]]}]}):
            with self.subTest(run=run):
                self.record(run)
                self.assertEqual(len(check_benchmarks.problems(self.root)), 1)


class ReferencePages(Tree):
    HEADER = """
/// All. Data: none. Remedy: read.
class Error : public std::runtime_error {
  /// The first of ranks().
  std::optional<int> rank() const;
};
/// Bad, and nothing else.
/// Data: file(). Remedy: mend
/// it. PyTorch: `ValueError`.
class ArgumentError : public Error {
"""

    def setUp(self):
        super().setUp()
        self.write("include/lockstep/base/error.h", self.HEADER)
        self.write("include/lockstep/a.h", "/// Odd. Data: none. Remedy: none.\nclass Odd : public ArgumentError {\n"
                                           "/// No error.\nclass Other : public Module {\n")

    def test_types_and_data(self):
        types = make_reference_pages.table_of_types(self.root).splitlines()[2:]
        self.assertEqual(types[1], "| `ArgumentError` | `Error` | Bad, and nothing else | `file()` | mend it | `ValueError` |")
        self.assertEqual(types[2], "| `Odd` | `ArgumentError` | Odd | none | none | - |")
        self.assertEqual(len(types), 3)
        self.assertIn("| `rank()` | The first of `ranks()` |", make_reference_pages.table_of_data(self.root))

    def test_comment_without_remedy(self):
        self.write("include/lockstep/a.h", "/// Odd. Data: none.\nclass Odd : public Error {\n")
        with self.assertRaisesRegex(SystemExit, "Odd: its comment has no part"):
            make_reference_pages.table_of_types(self.root)

    def test_environment(self):
        self.write("src/a.cpp", 'env.get("LOCKSTEP_A"), env.get("LOCKSTEP_B"), "PET_C", "SEND_F"')
        self.write("docs/environment.md", "| `LOCKSTEP_A`, `LOCKSTEP_OLD` | - |\n")
        self.assertEqual(make_reference_pages.problems_of_environment(self.root),
                         ["docs/environment.md lacks LOCKSTEP_B, which src/a.cpp has",
                          "docs/environment.md has LOCKSTEP_OLD, which is in no source"])

    def test_commands(self):
        text = "Usage\n\nSubcommands:\n  run-it   Run\n           it\n  bench    Measure\n\nend\n"
        self.assertEqual(make_reference_pages.commands_in(text), ["run-it", "bench"])


if __name__ == "__main__":
    unittest.main()
