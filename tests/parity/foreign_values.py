# SPDX-License-Identifier: BSD-3-Clause
"""A value as text, which foreign_values.cpp writes of the same value in C++; and one case of foreign_files.py."""
import collections
import dataclasses
import pathlib
import struct
import typing

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset


@dataclasses.dataclass
class Case:
    kind: str
    library: str
    how: str
    path: pathlib.Path
    read: typing.Callable


class Described(str):
    """A value that is described already."""


def hexed(value):
    return value.encode("utf-8", "surrogatepass").hex() if isinstance(value, str) else bytes(value).hex()


def name_of(dtype):
    return str(dtype).removeprefix("torch.")


def real(value):
    return "nan" if value != value else struct.pack(">d", value).hex()


def numbers(values):
    return "[" + ", ".join(map(str, values)) + "]"


def described_tensor(tensor):
    if isinstance(tensor, DTensor):
        part = described_tensor(tensor.to_local())
        if tensor.to_local().shape == tensor.shape:
            return part
        if tensor.to_local().numel() == 0:
            return f"no part of {numbers(tensor.shape)} {name_of(tensor.dtype)}"
        _, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
        return f"part of {numbers(tensor.shape)} at {numbers(offset)} {part}"
    shape = f"{name_of(tensor.dtype)}{numbers(tensor.shape)}"
    if tensor.requires_grad:
        shape = "grad " + shape
        tensor = tensor.detach()
    if tensor.is_meta:
        return shape + ":meta"
    if tensor.is_quantized or tensor.is_nested:
        return "other tensor"
    if tensor.layout == torch.sparse_coo:
        return f"{shape}:coo {described_tensor(tensor._indices())} {described_tensor(tensor._values())}"
    if tensor.layout != torch.strided:
        return f"{shape}:dense {described_tensor(tensor.to_dense())}"
    tensor = tensor.resolve_conj().resolve_neg().contiguous()
    return f"{shape}:{hexed(tensor.reshape(-1).view(torch.uint8).numpy())}" if tensor.numel() else shape + ":"


def items(values):
    return ", ".join(described(value) for value in values)


def described_dict(value):
    text = type(value).__name__ + "{" + ", ".join(f"{described(k)}: {described(v)}" for k, v in value.items()) + "}"
    attributes = {k: v for k, v in getattr(value, "__dict__", {}).items()}
    return text + (f" with {described_dict(attributes)}" if attributes else "")


def described(value):
    kind = type(value)
    if kind is Described:
        return str(value)
    if value is None or kind is bool:
        return str(value)
    if kind is int:
        return str(value) if -2**63 <= value < 2**63 else "int:" + hexed(value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))
    if kind is float:
        return "f:" + real(value)
    if kind is complex:
        return f"c:{real(value.real)} {real(value.imag)}"
    if kind in (str, bytes, bytearray):
        return {str: "s:", bytes: "b:", bytearray: "B:"}[kind] + hexed(value)
    if isinstance(value, torch.nn.Parameter) and not isinstance(value, DTensor):
        return ("parameter " if value.requires_grad else "constant parameter ") + described_tensor(value.data)
    if isinstance(value, torch.Tensor):
        return described_tensor(value)
    if kind is torch.Size:
        return "Size" + numbers(value)
    if kind in (torch.dtype, torch.device, torch.layout):
        return f"{kind.__name__}:{value}"
    if kind in (dict, collections.OrderedDict, collections.Counter):
        return described_dict(value)
    if kind is list:
        return f"[{items(value)}]"
    if kind is tuple:
        return f"({items(value)})"
    if kind is set:
        return "{" + ", ".join(sorted(described(item) for item in value)) + "}"
    return "other " + kind.__name__
