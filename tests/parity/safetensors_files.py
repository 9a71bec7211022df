# SPDX-License-Identifier: BSD-3-Clause
"""Dicts of tensors in safetensors files: safetensors_files.py make|check <folder>

make:  writes every dict to <folder>/<name>.safetensors, as safetensors.torch.save_file does, and to <name>.pt.
check: compares each with <name>.read.safetensors and <name>.pt.safetensors, which the other side wrote after reading
       the one and the other; prints the names of those that are the same, and ends with an error that tells what differs.
"""

import os
import sys

import safetensors
import safetensors.torch
import torch

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.complex64, torch.uint16, torch.uint32, torch.uint64, torch.float8_e5m2,
    torch.float8_e4m3fn, torch.float8_e5m2fnuz, torch.float8_e4m3fnuz, torch.float8_e8m0fnu,
]


def of_dtype(dtype):
    size = torch.empty(0, dtype=dtype).element_size()
    values = torch.arange(1, 12 * size + 1, dtype=torch.int64).to(torch.uint8)
    if dtype == torch.bool:
        values = values % 2
    return values.view(dtype).reshape(3, 4)


def name_of(dtype):
    return str(dtype).removeprefix("torch.")


def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.Linear(8, 2)).state_dict()


# Name: (tensors, metadata).
FILES = {
    "empty": ({}, None),
    "only_metadata": ({}, {"format": "pt"}),
    "scalar": ({"x": torch.tensor(3.5)}, None),
    "empty_tensors": ({"a": torch.empty(0), "b": torch.empty(3, 0, 2), "c": torch.empty(0, dtype=torch.int8),
                       "d": torch.ones(2)}, None),
    "specials": ({"x": torch.tensor([float("inf"), float("-inf"), -0.0, 5e-324, float("nan")])}, None),
    "dims": ({"x": torch.arange(128.0).reshape([2] * 7)}, None),
    "all_dtypes": ({name_of(dtype): of_dtype(dtype) for dtype in DTYPES}, None),
    "order_of_dtypes": ({f"{i % 3}.{name_of(dtype)}": of_dtype(dtype) for i, dtype in enumerate(reversed(DTYPES * 3))},
                        None),
    "order_of_names": ({name: torch.ones(1) for name in ["b", "a", "B", "a.10", "a.2", "é", "z", "", "~", "🙂"]}, None),
    "strange_names": ({name: torch.ones(1) for name in ['"quoted"', "back\\slash", "line\nbreak", "tab\t\b\f\r",
                                                        "\x01\x1f\x7f", "日本語", "</script>", "\u2028", "a/b", "\0"]},
                      None),
    "metadata": (net(), {"format": "pt"}),
    "strange_metadata": (net(), {'a "key"\n': "日本語 \\ \x02"}),
    "many_metadata": (net(), {f"key{i}": str(i) for i in range(20)}),
    "state_dict": (net(), None),
    "thousand": ({f"layer.{i}.weight": torch.full((i % 7,), float(i)) for i in range(1000)}, None),
}
for _dtype in DTYPES:
    FILES[name_of(_dtype)] = ({"x": of_dtype(_dtype), "scalar": of_dtype(_dtype)[0, 0].clone()}, None)


def bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def difference(tensors, metadata, path):
    with safetensors.safe_open(path, framework="pt") as opened:
        if (opened.metadata() or None) != metadata:
            return f"metadata {opened.metadata()} instead of {metadata}"
        there = {name: opened.get_tensor(name) for name in opened.keys()}
    if sorted(there) != sorted(tensors):
        return f"names {sorted(there)[:10]} instead of {sorted(tensors)[:10]}"
    for name, tensor in tensors.items():
        other = there[name]
        if (tensor.dtype, tensor.shape) != (other.dtype, other.shape):
            return f"{name}: {other.dtype} {other.shape} instead of {tensor.dtype} {tensor.shape}"
        if not torch.equal(bits(tensor), bits(other)):
            return f"{name}: other numbers"
    return None


def make(folder):
    for name, (tensors, metadata) in FILES.items():
        safetensors.torch.save_file(tensors, os.path.join(folder, name + ".safetensors"), metadata=metadata)
        torch.save(dict(tensors), os.path.join(folder, name + ".pt"))


def check(folder):
    failed = False
    for name, (tensors, metadata) in FILES.items():
        for written in (".read.safetensors", ".pt.safetensors"):
            problem = difference(tensors, metadata, os.path.join(folder, name + written))
            if problem:
                failed = True
                print(f"{name}{written}: {problem}", file=sys.stderr)
        print(name)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    {"make": make, "check": check}[sys.argv[1]](sys.argv[2])
