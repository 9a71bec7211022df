# SPDX-License-Identifier: BSD-3-Clause
"""Unusual files of torch.save: odd_files.py <folder>"""
import os
import sys
import zipfile

import torch
from torch import nn

FOLDER = sys.argv[1]


def path(name):
    return os.path.join(FOLDER, name)


def write(name, value, zipped=True):
    torch.save(value, path(name), _use_new_zipfile_serialization=zipped)


def repack(source, target, compression):
    """The records of a file of torch.save, packed by Python's zipfile."""
    with zipfile.ZipFile(path(source)) as old, zipfile.ZipFile(path(target), "w", compression) as new:
        for name in old.namelist():
            with new.open(zipfile.ZipInfo(name) if compression == zipfile.ZIP_STORED else name, "w",
                          force_zip64=True) as record:
                record.write(old.read(name))


def quantized():
    weight = torch.arange(6.0).reshape(2, 3)
    write("per_tensor.pt", {"weight": torch.quantize_per_tensor(weight, 0.1, 10, torch.qint8)})
    write("per_channel.pt", [torch.quantize_per_channel(weight, torch.tensor([0.1, 0.2]), torch.tensor([0, 0]), 0,
                                                        torch.quint8)])
    write("old_per_tensor.pt", torch.quantize_per_tensor(weight, 0.1, 0, torch.qint32), zipped=False)


def usual():
    base = torch.arange(24.0)
    return {"base": base, "rows": base.view(4, 6), "tail": base[20:], "bytes": torch.arange(5, dtype=torch.uint8),
            "parameter": nn.Parameter(torch.ones(2, 3)), "epoch": 3, "empty": torch.empty(0)}


def compressed():
    write("large.pt", {"zeros": torch.zeros(64 << 20, dtype=torch.uint8)})
    repack("large.pt", "deflated.pt", zipfile.ZIP_DEFLATED)
    os.remove(path("large.pt"))


def with_64_bit_sizes():
    # Every size and place is then written as those beyond 4 GB are.
    zipfile.ZIP64_LIMIT = 0
    repack("usual.pt", "zip64.pt", zipfile.ZIP_STORED)
    there = torch.load(path("zip64.pt"), weights_only=True)
    assert torch.equal(there["rows"], torch.arange(24.0).view(4, 6))


def from_a_gpu():
    """Like a file from a machine with a GPU."""
    tag = torch.serialization.location_tag
    torch.serialization.location_tag = lambda storage: "cuda:0"
    write("cuda.pt", usual())
    write("old_cuda.pt", usual(), zipped=False)
    torch.serialization.location_tag = tag
    for name in ("cuda.pt", "old_cuda.pt"):
        with open(path(name), "rb") as file:
            assert b"cuda:0" in file.read()


write("usual.pt", usual())
quantized()
compressed()
from_a_gpu()
with_64_bit_sizes()
