# SPDX-License-Identifier: BSD-3-Clause
"""The checks beside this file can fail: test_checks.py <clang-format 16> <nm> <c++>"""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import check_format
import check_includes
import check_licence
import check_symbols

CLANG_FORMAT, NM, CXX = sys.argv[1:4]
SPDX = "// SPDX-License-Identifier: BSD-3-Clause\n"


class Tree(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path


class Includes(Tree):
    def problems(self, name, include):
        self.write(name, f"#include {include}\n")
        return check_includes.problems(self.root)

    def test_allowed(self):
        for name, include in (
            ("src/comm/a.cpp", "<lockstep/base/env.h>"),
            ("src/comm/a.cpp", '"comm/b.h"'),
            ("src/train/a.cpp", "<lockstep/data/loader.h>"),
            ("src/rendezvous/a.cpp", '"launch/process_tree.h"'),
            ("src/launch/a.cpp", "<lockstep/machine/topology.h>"),
            ("src/data/a.cpp", "<torch/torch.h>"),
            ("src/backends/gloo/a.cpp", "<torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>"),
            ("include/lockstep/lockstep.h", "<lockstep/ddp/ddp.h>"),
            ("examples/a.cpp", "<lockstep/lockstep.h>"),
        ):
            with self.subTest(name=name, include=include):
                self.assertEqual(self.problems(name, include), [])

    def test_refused(self):
        for name, include in (
            ("src/base/a.cpp", "<lockstep/comm/work.h>"),
            ("src/base/a.cpp", "<torch/torch.h>"),
            ("src/launch/a.cpp", "<c10/util/Exception.h>"),
            ("src/launch/a.cpp", '"comm/work.h"'),
            ("src/launch/a.cpp", "<lockstep/rendezvous/spawn.h>"),
            ("src/machine/a.cpp", "<lockstep/launch/launch.h>"),
            ("src/machine/a.cpp", "<ATen/Parallel.h>"),
            ("include/lockstep/comm/a.h", "<lockstep/ddp/ddp.h>"),
            ("src/comm/a.cpp", "<torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>"),
            ("src/data/a.cpp", "<lockstep/comm/work.h>"),
            ("src/serialize/a.cpp", "<lockstep/data/loader.h>"),
            ("src/nn/a.cpp", "<lockstep/ddp/options.h>"),
            ("src/ddp/a.cpp", '"../nn/a.h"'),
            ("src/ddp/a.cpp", "<lockstep/lockstep.h>"),
            ("include/lockstep/ddp/a.h", "<fmt/format.h>"),
            ("include/lockstep/ddp/a.h", '"ddp/private.h"'),
            ("tools/lockstep/a.cpp", "<lockstep/ddp/ddp.h>"),
            ("src/unheard_of/a.cpp", "<vector>"),
        ):
            with self.subTest(name=name, include=include):
                self.assertEqual(len(self.problems(name, include)), 1)
                (self.root / name).unlink()


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
