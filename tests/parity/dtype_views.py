# SPDX-License-Identifier: BSD-3-Clause
"""Checks views of one storage in several dtypes: dtype_views.py <file>"""
import sys

import torch

views = torch.load(sys.argv[1], weights_only=True)
base = torch.arange(8.0)
assert torch.equal(views["base"], base)
assert torch.equal(views["ints"], base.view(torch.int32))
assert torch.equal(views["halves"], base.view(torch.float16))
assert torch.equal(views["odd"].view(torch.uint8), torch.arange(8, dtype=torch.uint8))
views["ints"].zero_()
print("shared" if views["base"].sum() == 0 and views["halves"].sum() == 0 else "apart")
