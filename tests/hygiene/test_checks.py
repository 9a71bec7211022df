# SPDX-License-Identifier: BSD-3-Clause
"""The checks of sources can fail: test_checks.py <clang-format 16> <nm> <c++>"""

import subprocess
import sys
import unittest

import check_files
import check_format
import check_includes
import check_language
import check_licence
import check_places
import check_symbols
from checked_tree import SPDX, Tree

CLANG_FORMAT, NM, CXX = sys.argv[1:4]


class Includes(Tree):
    TABLE = """text
| wing | layer | what it is | may include |
|---|---|---|---|
| foundation | `base` | errors | - |
| foundation | `machine` | cores | `base` |
| launcher | `launch` | supervisor | `base`, `machine` |
| tensors | `serialize` | files | `base` |
| tensors | `state` | state dicts | `base`, `serialize` |
| communication | `comm` | groups | `base` |
| communication | `backends` | backends | `base`, `comm` |
| communication | `rendezvous` | init | `base`, `comm`, `launch` |
| parallel | `trace` | times | `base`, `comm` |
| parallel | `nn` | layers | `base`, `state`, `comm` |
| parallel | `ddp` | reducer | `base`, `comm`, `trace`, `nn` |
| kit | `data` | loader | `base` |
| kit | `train` | loops | `base`, `trace`, `ddp`, `data` |

text
"""

    def setUp(self):
        super().setUp()
        self.write("CONTRIBUTING.md", self.TABLE)

    def problems(self, name, include):
        self.write(name, f"#include {include}\n")
        return check_includes.problems(self.root)

    def test_allowed(self):
        for name, include in (
            ("src/communication/comm/a.cpp", "<lockstep/base/env.h>"),
            ("src/communication/comm/a.cpp", '"comm/b.h"'),
            ("src/kit/train/a.cpp", "<lockstep/data/loader.h>"),
            ("src/kit/train/a.cpp", "<lockstep/ddp/ddp.h>"),
            ("src/kit/train/a.cpp", '"trace/chrome_trace.h"'),
            ("src/communication/rendezvous/a.cpp", '"launch/process_tree.h"'),
            ("src/launcher/launch/a.cpp", "<lockstep/machine/host.h>"),
            ("src/kit/data/a.cpp", "<torch/torch.h>"),
            ("src/kit/data/download/a.cpp", '"data/b.h"'),
            ("src/parallel/nn/a.cpp", "<lockstep/checkpoint/state_dict.h>"),
            ("src/communication/backends/gloo/a.cpp", "<torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>"),
            ("include/lockstep/lockstep.h", "<lockstep/ddp/ddp.h>"),
            ("include/lockstep/lockstep.h", "<lockstep/data.h>"),
            ("src/foundation/base/a.cpp", "<lockstep/version.h>"),
            ("examples/a.cpp", "<lockstep/lockstep.h>"),
        ):
            with self.subTest(name=name, include=include):
                self.assertEqual(self.problems(name, include), [])

    def test_refused(self):
        for name, include in (
            ("src/foundation/base/a.cpp", "<lockstep/comm/process_group.h>"),
            ("src/foundation/base/a.cpp", "<torch/torch.h>"),
            ("src/launcher/launch/a.cpp", "<c10/util/Exception.h>"),
            ("src/launcher/launch/a.cpp", '"comm/process_group.h"'),
            ("src/launcher/launch/a.cpp", "<lockstep/rendezvous/spawn.h>"),
            ("src/foundation/machine/a.cpp", "<lockstep/launch/launch.h>"),
            ("src/foundation/machine/a.cpp", "<ATen/Parallel.h>"),
            ("include/lockstep/comm/a.h", "<lockstep/ddp/ddp.h>"),
            ("src/communication/comm/a.cpp", "<torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>"),
            ("src/communication/comm/a.cpp", "<lockstep/checkpoint/state_dict.h>"),
            ("src/kit/data/a.cpp", "<lockstep/comm/process_group.h>"),
            ("src/kit/train/a.cpp", '"ddp/reducer.h"'),
            ("src/tensors/serialize/a.cpp", "<lockstep/data/loader.h>"),
            ("src/parallel/nn/a.cpp", "<lockstep/ddp/options.h>"),
            ("src/parallel/ddp/a.cpp", '"../nn/a.h"'),
            ("src/parallel/ddp/a.cpp", "<lockstep/lockstep.h>"),
            ("src/parallel/ddp/a.cpp", "<lockstep/distributed.h>"),
            ("src/kit/data/a.cpp", "<lockstep/data.h>"),
            ("include/lockstep/ddp/a.h", "<fmt/format.h>"),
            ("include/lockstep/ddp/a.h", '"ddp/private.h"'),
            ("tools/lockstep/a.cpp", "<lockstep/ddp/ddp.h>"),
            ("src/kit/unheard_of/a.cpp", "<vector>"),
            ("src/kit/ddp/a.cpp", "<vector>"),
        ):
            with self.subTest(name=name, include=include):
                self.assertEqual(len(self.problems(name, include)), 1)
                (self.root / name).unlink()

    def test_table(self):
        for text, replacement, complaint in (
            (self.TABLE, "", "no layer table"),
            ("| wing | layer | what it is | may include |", "| layer | what it is | may include |", "no layer table"),
            ("|---|---|---|---|\n", "", "no layer table"),
            (self.TABLE[self.TABLE.index("| foundation | `base"):], "", "has no rows"),
            ("| - |", "| |", ":4: not a row"),
            ("`base`, `comm`, `launch`", "base, comm and launch", ":11: not a row"),
            ("| `launch`", "| `machine`", ":6: a second row for machine"),
            ("| launcher |", "| cellar |", ":6: cellar is no wing"),
            ("| communication | `comm`", "| kit | `comm`", ":10: backends includes comm, whose wing comes after communication"),
            ("`ddp`, `data`", "`ddp`, `checkpoint`", ":16: train includes checkpoint, which has no row above"),
        ):
            with self.subTest(replacement=replacement, complaint=complaint):
                self.assertIn(text, self.TABLE)
                self.write("CONTRIBUTING.md", self.TABLE.replace(text, replacement))
                found = check_includes.problems(self.root)
                self.assertEqual(len(found), 1)
                self.assertIn(complaint, found[0])

    def test_no_contributing(self):
        (self.root / "CONTRIBUTING.md").unlink()
        self.assertEqual(len(check_includes.problems(self.root)), 1)


class Files(Tree):
    LONG = "int a;\n" * 31

    def problems(self, *names, text=LONG, listed=()):
        for name in names:
            self.write(name, text)
        return check_files.problems(self.root, listed)

    def test_headers(self):
        self.assertEqual(self.problems(
            "src/kit/data/a.cpp", "src/kit/data/a.h", "src/kit/data/b.cpp", "include/lockstep/data/b.h",
            "src/kit/data/c.cpp", "include/lockstep/data/detail/c.h", "src/tensors/state/state_dict.cpp",
            "include/lockstep/checkpoint/state_dict.h", "tools/lockstep/main.cpp", "tests/unit/a.cpp"), [])

    def test_no_header(self):
        self.assertIn("has no header", self.problems("src/kit/data/a.cpp", "include/lockstep/models/a.h")[0])

    def test_listed(self):
        self.assertEqual(self.problems("src/kit/data/a.cpp", listed=["src/kit/data/a.cpp"]), [])
        self.assertIn("is listed", self.problems("src/kit/data/a.h", listed=["src/kit/data/a.cpp"])[0])
        self.assertIn("is listed", self.problems(listed=["src/kit/data/b.cpp"])[0])
        many = [f"src/kit/data/x{number}.cpp" for number in range(42)]
        self.assertIn(f"{len(many)} files are listed", self.problems(*many, listed=many)[-1])

    def test_fragments(self):
        names = [f"src/kit/data/x{number}.h" for number in range(30)] + ["include/lockstep/data.h", "tools/lockstep/main.cpp"]
        self.assertEqual(self.problems(*names, text="// Text\n\n" * 20 + "int a;\n" * 30), [])
        self.assertIn("31 files have 30 lines of code or fewer", self.problems("src/kit/data/y.h", text="int a;\n")[0])
        self.problems("src/kit/data/y.cpp")
        self.assertEqual(check_files.problems(self.root, ()), [])


class Places(Tree):
    def problems(self, text, name="src/kit/metrics/sums.cpp"):
        return check_places.problems_of(name, text)

    def test_refuses_a_call_without_a_place(self):
        self.assertIn("all_reduce(...) has no place", self.problems("group->all_reduce(sums);")[0])
        self.assertIn("broadcast_async(...)", self.problems("default_group().broadcast_async(at::cat({a, b}), 0);")[0])

    def test_accepts_places(self):
        self.assertEqual(self.problems("group->all_reduce(sums, op, where_);"), [])
        self.assertEqual(self.problems("const comm::CallSite site(where);\ngroup.all_reduce(sums);"), [])
        self.assertEqual(self.problems("tensor.gather(0, index); group.gather().invalidate();"), [])
        self.assertEqual(self.problems("group.all_reduce(sums);", "src/communication/comm/objects.cpp"), [])

    def test_refuses_a_line_of_the_library(self):
        self.assertEqual(len(self.problems("const auto where = std::source_location::current();")), 1)


class Language(Tree):
    def test_allowed(self):
        self.write("docs/a.md", "The first of the ranks writes. It is told apart by its number.\n")
        self.write("docs/b.md", "Team work; a data area; the goal is reached.\n")
        self.assertEqual(check_language.problems(self.root), [])

    def test_found(self):
        for name, text in (
            ("README.md", "Rank 0 is told.\n"),
            ("docs/a.md", "The steps are taken in\nturns.\n"),
            ("docs/a.md", "The end. Of a disk nothing is seen.\n"),
            ("docs/a.md", "- Of the ranks one writes.\n"),
            ("docs/a.md", "What it reads is checked.\n"),
            ("docs/a.pml", "/* sleeps for ever */\n"),
            ("src/comm/a.cpp", "// The loop goes on.\n"),
            ("src/comm/a.cpp", "CallLog log;\n"),
            ("src/backends/shm/a.h", "class Team {};\n"),
            ("src/base/a.cpp", "int settle();\n"),
            ("src/base/a.cpp", "static std::mutex mutex;\n"),
            ("src/base/a.cpp", 'fmt::format("rank {} of {}: no", 1, 2);\n'),
            ("src/comm/host_mesh.h", "int a;\n"),
        ):
            with self.subTest(name=name, text=text):
                self.write(name, text)
                self.assertEqual(len(check_language.problems(self.root)), 1)
                (self.root / name).unlink()

    def test_names(self):
        good = "struct DdpStats {\n};\nclass FSDPModule : public A {\n};\nstruct GPT2Options {\n};\nenum class Mode { rel, abs };\nenum class ReduceOp { SUM };\n" \
               "void f(const AOptions& options, int b = 0, const std::optional<ProcessGroup>& group = {});\n// (AOptions options)\n"
        self.write("include/lockstep/a/a.h", good)
        self.assertEqual(check_language.problems(self.root), [])
        for text in ("struct FSDPStats {\n};\n", "enum class Mode { REL };\n", "enum class ReduceOp { sum };\n", "using my_type = int;\n",
                     "void f(AOptions options);\n", "A(int b,\n  fsdp::AOptions options = {});\n", "void f(ProcessGroup group, int a);\n",
                     "void f(std::optional<ProcessGroup> group = std::nullopt);\n"):
            with self.subTest(text=text):
                self.write("include/lockstep/a/a.h", text)
                self.assertEqual(len(check_language.problems(self.root)), 1)

    def test_line(self):
        self.write("docs/a.md", "Good.\nRank 0 is told.\n")
        self.assertTrue(check_language.problems(self.root)[0].startswith("docs/a.md:2: "))


class Licence(Tree):
    def test_says_it(self):
        self.write("src/base/a.cpp", SPDX)
        self.write("scripts/a.sh", "#!/bin/sh\n# SPDX-License-Identifier: BSD-3-Clause\n")
        self.assertEqual(check_licence.problems(self.root), [])

    def test_does_not(self):
        self.write("src/base/a.cpp", "int a;\n" + SPDX)
        self.write("tests/a.py", "")
        self.write("CMakeLists.txt", "project(x)\n")
        self.assertEqual(len(check_licence.problems(self.root)), 3)


class Format(Tree):
    def test_formatted(self):
        self.write("src/base/a.cpp", "int a;\n")
        self.assertEqual(check_format.problems(self.root, CLANG_FORMAT), [])

    def test_not_formatted(self):
        self.write("src/base/a.cpp", "int  a ;\n")
        self.assertNotEqual(check_format.problems(self.root, CLANG_FORMAT), [])

    def test_no_such_program(self):
        self.write("src/base/a.cpp", "int a;\n")
        self.assertEqual(len(check_format.problems(self.root, "/no/such/clang-format")), 1)


class Symbols(Tree):
    def compiled(self, text):
        source = self.write("a.cpp", text)
        subprocess.run([CXX, "-c", source, "-o", source.with_suffix(".o")], check=True)
        return str(source.with_suffix(".o"))

    def test_none(self):
        self.assertEqual(check_symbols.problems(NM, self.compiled("int f() { return 1; }")), [])

    def test_one(self):
        text = "namespace c10d { struct ProcessGroupGloo { struct GlooStore { int get(); }; };\n" \
               "int ProcessGroupGloo::GlooStore::get() { return 1; } }"
        self.assertEqual(len(check_symbols.problems(NM, self.compiled(text))), 1)

    def test_no_such_library(self):
        self.assertEqual(len(check_symbols.problems(NM, "/no/such/library.a")), 1)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
