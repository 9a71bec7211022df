# SPDX-License-Identifier: BSD-3-Clause
"""Small files to start from: seeds.py <folder>"""
import io
import os
import sys
import zipfile

import safetensors.torch
import torch

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
