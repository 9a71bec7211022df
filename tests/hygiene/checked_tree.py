# SPDX-License-Identifier: BSD-3-Clause
"""A source tree of a few files, for tests of the checks."""

import tempfile
import unittest
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
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
