# SPDX-License-Identifier: BSD-3-Clause
"""class_indices.py FOLDER: writes class_indices.json files as classification tutorials do, and expected.pt with the
names in them."""
import json
import pathlib
import random
import sys

import torch

folder = pathlib.Path(sys.argv[1])
draw = random.Random(20240305)
LETTERS = 'az09 _-"\\/\b\f\n\r\t\x00\x1f\x7f\x80\xe4\xf6\u20ac\u4e2d\u2028\ufffd\uffff\U0001f33b\U0010ffff'

expected = {}
for i in range(50):
    names = ["".join(draw.choices(LETTERS, k=draw.randrange(12))) for _ in range(draw.choice([0, 1, 5, 12, 120]))]
    text = json.dumps(dict(enumerate(names)), indent=4)
    (folder / f"{i}.json").write_text(text)
    expected[f"{i}.json"] = names
torch.save(expected, folder / "expected.pt")
