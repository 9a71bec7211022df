# SPDX-License-Identifier: BSD-3-Clause
"""Small files to start from: seeds.py <folder>"""
import io
import os
import sys
import zipfile

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
            with zipfile.ZipFile(data) as archive, open(os.path.join(folder, f"{name}-pickle"), "wb") as file:
                file.write(b"\1" + archive.read("archive/data.pkl"))
