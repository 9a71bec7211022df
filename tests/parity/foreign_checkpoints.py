# SPDX-License-Identifier: BSD-3-Clause
"""Odd checkpoints, for foreign_files.py."""
import argparse
import collections
import datetime
import fractions
import functools
import io
import pathlib
import pickle
import tarfile
import unittest.mock
import zipfile

import numpy
import torch
import torch.distributed
from torch.distributed._mesh_layout import _MeshLayout
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from foreign_values import Case

Point = collections.namedtuple("Point", "x y")
MATRIX = torch.arange(6.0).reshape(2, 3)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 3)

    def forward(self, x):
        return self.layer(x)


def numbers_and_texts():
    return [0, -1, 2**31, -2**31 - 1, 2**63, -2**63, 2**64, -2**100, True, None, 1.5, float("inf"), float("nan"), -0.0, 1 + 2j, "text",
            "\u65e5\u672c \U0001f642", "\ud800", "", b"bytes", bytes(range(256)), bytearray(b"array"), "x" * 300, (1,), (), [], {},
            set(), {1, 2, "a"}, {1: "a", "1": "b", None: 2, (1, 2): 3, 2.5: 4}, [[1, (2, [3])]]]


def containers():
    ordered = collections.OrderedDict(b=1, a=2)
    ordered._metadata = collections.OrderedDict({"": {"version": 1}})
    return [ordered, collections.Counter("aabc"), torch.Size([2, 3]), torch.float16, torch.device("cuda:1"), torch.strided,
            torch.sparse_coo, Net().state_dict()]


def dtypes():
    return [getattr(torch, name) for name in
            ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64", "complex128",
             "complex32", "uint16", "uint32", "uint64", "float8_e5m2", "float8_e4m3fn", "float8_e5m2fnuz", "float8_e4m3fnuz",
             "float8_e8m0fnu")]


def tensors():
    shared = torch.arange(10.0)
    turned = torch.view_as_complex(torch.arange(8.0).reshape(4, 2))
    attributed = torch.ones(2)
    attributed.note = "more"
    return ([torch.arange(16, dtype=torch.uint8).view(dtype) if dtype != torch.bool else torch.tensor([True, False]) for dtype in dtypes()]
            + [torch.tensor(3.5), torch.empty(0), torch.empty(3, 0, 2), MATRIX.t(), shared[::3], torch.ones(1).expand(2, 3),
               [shared, shared[2:5], shared.view(2, 5)], turned.conj(), turned.imag.neg(), torch._neg_view(shared),
               torch.ones(2, requires_grad=True), torch.nn.Parameter(MATRIX), torch.nn.Parameter(MATRIX, requires_grad=False), attributed,
               torch.empty(2, 3, device="meta"), torch.arange(6.0).reshape(1, 1, 6), torch.ones([1] * 20)])


def sparse_tensors():
    return [MATRIX.to_sparse(), torch.eye(3).to_sparse_csr(), torch.eye(3).to_sparse_csc(), torch.eye(4).to_sparse_bsr(2),
            torch.sparse_coo_tensor([[0, 0]], [1.0, 2.0], (2,))]


def scalars_of_numpy():
    return [numpy.float64(1.5), numpy.float32(0.5), numpy.int64(7), numpy.bool_(True), numpy.uint8(200), numpy.float16(2)]


def refused_by_python():
    return {
        "checkpoint with an object of a class": [pathlib.Path("a"), fractions.Fraction(1, 2), Point(1, 2), range(3), slice(1), object(),
                                                 argparse.Namespace(a=1), functools.partial(print), datetime.date(2020, 1, 1), Net(),
                                                 frozenset([1]), print, Point],
    }


def values():
    yield from (("checkpoint of numbers, texts and containers", value) for value in numbers_and_texts() + containers())
    yield from (("checkpoint of tensors", value) for value in tensors())
    yield from (("checkpoint of sparse tensors", value) for value in sparse_tensors())
    yield from (("checkpoint with a number of NumPy", value) for value in scalars_of_numpy())
    for kind, objects in refused_by_python().items():
        yield from ((kind, value) for value in objects)
    yield "checkpoint with an array of NumPy", numpy.arange(3)
    yield "checkpoint with a bare storage", MATRIX.untyped_storage()
    yield "checkpoint with a bare storage", MATRIX.storage()
    yield "checkpoint with empty bytes", b""
    yield "checkpoint with a defaultdict", collections.defaultdict(int, a=1)
    yield "checkpoint with a quantized tensor", torch.quantize_per_tensor(MATRIX, 0.1, 10, torch.qint8)
    yield "checkpoint with a nested tensor", torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    itself = []
    itself.append(itself)
    yield "checkpoint with a list that holds itself", itself


def sharded_values():
    torch.distributed.init_process_group("fake", rank=1, world_size=4, store=FakeStore())
    square = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    net = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 1))
    fully_shard(net)
    for mesh, placements in ((square["a"], [Shard(0)]), (square["b"], [Shard(1)]), (square, [Replicate(), Shard(1)]),
                             (square, [Shard(0), Shard(1)]), (square, [Shard(0), Shard(0)])):
        yield "checkpoint with a DTensor", {"x": DTensor.from_local(MATRIX, mesh, placements)}
    yield "checkpoint with a DTensor", DTensor.from_local(MATRIX, square, [Replicate(), Replicate()])
    yield "checkpoint with a DTensor whose sum is pending", DTensor.from_local(MATRIX, square, [Replicate(), Partial()])
    yield "checkpoint with a DeviceMesh", square
    yield "state dict of Python's fully_shard()", net.state_dict()
    torch.distributed.destroy_process_group()


def saved(value, **options):
    file = io.BytesIO()
    torch.save(value, file, **options)
    return file.getvalue()


def state_before_2_13(layout):
    """What torch 2.11 and 2.12 pickle of a mesh's layout, which has no axes there."""
    def numbers(name):
        axes = [getattr(axis, name) for axis in layout.axes]
        return tuple(axis[0] if len(axis) == 1 else axis or 1 for axis in axes)
    return {"shape": numbers("shape"), "stride": numbers("stride")} if hasattr(layout, "axes") else vars(layout)


def saved_before_2_13(value):
    with unittest.mock.patch.object(_MeshLayout, "__getstate__", state_before_2_13):
        return saved(value)


def packed(records, compression=zipfile.ZIP_STORED):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, data in records.items():
            archive.writestr(name, data)
    return file.getvalue()


def records_of(data):
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def tar_file():
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("storages"))
    return file.getvalue()


def scripted(value):
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(value), file)
    return file.getvalue()


def containers_of_files():
    value = {"a": MATRIX, "b": [MATRIX.t(), 3]}
    data = saved(value)
    old = saved(value, _use_new_zipfile_serialization=False)
    records = records_of(data)
    for name in ("archive/data/0", "archive/data.pkl"):
        place = data.index(records[name])
        yield "checkpoint with a damaged record", data[:place + 5] + bytes([data[place + 5] ^ 0x40]) + data[place + 6:]
    yield "checkpoint in the format before 1.6", old
    for protocol in (2, 3, 4, 5):
        yield "checkpoint of another pickle protocol", saved(value, pickle_protocol=protocol)
        yield "checkpoint of another pickle protocol", saved(value, pickle_protocol=protocol, _use_new_zipfile_serialization=False)
    yield "checkpoint packed again", packed(records)
    yield "checkpoint packed again", packed({name.replace("archive/", "other name/"): data for name, data in records.items()})
    yield "checkpoint packed again", packed(records | {"archive/more": b"text"})
    yield "checkpoint packed again", packed({name: records[name] for name in reversed(records)})
    yield "checkpoint packed again with compression", packed(records, zipfile.ZIP_DEFLATED)
    yield "checkpoint without its byte order", packed({name: data for name, data in records.items() if "byteorder" not in name})
    yield "checkpoint without its version", packed({name: data for name, data in records.items() if not name.endswith("version")})
    yield "checkpoint of a big-endian machine", packed(records | {"archive/byteorder": b"big"})
    yield "checkpoint of an unknown byte order", packed(records | {"archive/byteorder": b"odd"})
    yield "checkpoint without data", packed({name: data for name, data in records.items() if "data/0" not in name})
    yield "checkpoint without its pickle", packed({name: data for name, data in records.items() if "pkl" not in name})
    yield "checkpoint with less data than tensors", packed(records | {"archive/data/0": b"1234"})
    yield "checkpoint with more data than tensors", packed(records | {"archive/data/0": records["archive/data/0"] + bytes(8)})
    for part in (0, 0.01, 0.3, 0.6, 0.99):
        yield "checkpoint cut short", data[:int(part * len(data))]
        if part > 0:
            yield "checkpoint cut short", old[:int(part * len(old))]
    yield "checkpoint with bytes behind its end", data + bytes(10)
    yield "checkpoint in the format before 1.6 with bytes behind its end", old + bytes(10)
    yield "checkpoint with bytes before its beginning", bytes(10) + data
    yield "pickle file", pickle.dumps({"a": 1})
    yield "no checkpoint", b"no checkpoint\n"
    yield "no checkpoint", packed({})
    yield "no checkpoint", packed({"a": b"b"})
    yield "no checkpoint", tar_file()
    yield "TorchScript archive", scripted(Net())


def cases(folder):
    sharded = [(kind, saved(value), saved_before_2_13(value)) for kind, value in sharded_values()]
    files = [(kind, data) for kind, data, _ in sharded]
    for kind, value in values():
        try:
            files.append((kind, saved(value)))
        except Exception as error:
            raise RuntimeError(f"{kind}: {value!r}") from error
    files += containers_of_files()
    for number, (kind, data) in enumerate(files):
        path = folder / f"checkpoint{number}.pt"
        path.write_bytes(data)
        yield Case(kind, "torch", "checkpoint", path, lambda: torch.load(path, weights_only=True))
    for number, (kind, data, older) in enumerate(sharded):
        path = folder / f"older_mesh{number}.pt"
        path.write_bytes(older)
        yield Case(kind, "torch", "checkpoint", path, lambda: torch.load(io.BytesIO(data), weights_only=True))
