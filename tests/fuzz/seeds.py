# SPDX-License-Identifier: BSD-3-Clause
"""Small files to start from: seeds.py <folder>"""
import io
import os
import sys
import tempfile
import zipfile

import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "parity"))
from structures import STRUCTURES  # noqa: E402

folder = sys.argv[1]
os.makedirs(folder, exist_ok=True)
for name, make in STRUCTURES.items():
    for modern in (True, False):
        data = io.BytesIO()
        try:
            torch.save(make(), data, _use_new_zipfile_serialization=modern)
        except Exception:  # what the older format cannot hold
            continue
        if len(data.getvalue()) > 20000:
            continue
        with open(os.path.join(folder, f"{name}-{modern}"), "wb") as file:
            file.write(b"\0" + data.getvalue())
        if modern:
            with open(os.path.join(folder, f"{name}-verified"), "wb") as file:
                file.write(b"\2" + data.getvalue())
            with zipfile.ZipFile(data) as archive, open(os.path.join(folder, f"{name}-pickle"), "wb") as file:
                file.write(b"\1" + archive.read("archive/data.pkl"))
tensors = {"a": torch.arange(6).view(2, 3), "b.c": torch.ones(2, dtype=torch.bfloat16), "empty": torch.empty(0, 4)}
for name, metadata in (("plain", None), ("described", {"format": "pt", "note": "x"})):
    with open(os.path.join(folder, f"safetensors-{name}"), "wb") as file:
        file.write(b"\3" + safetensors.torch.save(tensors, metadata))
state = {"model": {"w": torch.ones(2, 3), "b": torch.zeros(4, dtype=torch.bfloat16)}, "rates": [0.1, torch.ones(1)], "epoch": 3}
with tempfile.TemporaryDirectory() as saved:
    dcp.save(state, checkpoint_id=saved)
    with open(os.path.join(saved, ".metadata"), "rb") as table, open(os.path.join(folder, "dcp-table"), "wb") as file:
        file.write(b"\4" + table.read())
data = io.BytesIO()
torch.save({"model": {"w": "model.w", 3: "model.3"}, "rates": ["rates.0", "rates.1"], "epoch": "epoch"}, data)
with open(os.path.join(folder, "dcp-structure"), "wb") as file:
    file.write(b"\5" + data.getvalue())
