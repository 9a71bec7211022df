# SPDX-License-Identifier: BSD-3-Clause
"""Compares structures that C++ built and saved with the same structures built here: structures_from_cpp.py <folder>

Prints the names of the files that are what they should be, sorted; ends with an error that tells what differs, for every
file that has no expectation, too.
"""
import collections
import math
import os
import sys

import torch
from torch import nn

import structures


def floats(count):
    return torch.arange(count, dtype=torch.float32)


def deep(levels):
    value = 1
    for _ in range(levels):
        value = [value]
    return value


def state_dict():
    module = collections.OrderedDict([
        ("0.weight", torch.tensor([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]])),
        ("0.bias", torch.tensor([0.0, 1.0])),
        ("1.num_batches_tracked", torch.tensor(7)),
    ])
    module._metadata = collections.OrderedDict([("", {"version": 1}), ("1", {"version": 2})])
    return module


def run():
    return {"epoch": 3, "arch": "two layers", "state_dict": state_dict(), "best_acc": 0.75,
            "optimizer": {"state": {0: {"momentum_buffer": torch.tensor([0.0, 1.0, 2.0])}, 1: {"step": 4}},
                          "param_groups": [{"lr": 0.1, "betas": (0.9, 0.999), "params": [0, 1]},
                                           {"lr": 0.01, "nesterov": False, "params": []}]}}


def shared():
    base = floats(24)
    return {"base": base, "rows": base.view(4, 6), "column": base.view(4, 6)[:, 2], "same": base, "tail": base[20:],
            "other": floats(24)}


def shared_apart():
    fours = torch.zeros(4, dtype=torch.int32)
    return [{"weight": fours}, (fours, fours[1:3])]


def complex_numbers():
    return torch.tensor([0 + 1j, 1 + 2j, 2 + 3j, 3 + 4j], dtype=torch.complex64)


def block():
    return floats(120).reshape(2, 3, 4, 5)


def sparse():
    return torch.sparse_coo_tensor([[0, 2, 2], [1, 0, 2]], [1.0, 2.0, 3.0], (3, 4))


EXPECTED = {
    "none": lambda: None,
    "bools": lambda: [True, False],
    "ints": lambda: [0, 1, -1, 255, 256, 65535, 65536, -129, 2**31, -2**31 - 1, 2**63 - 1, -2**63],
    "big_ints": lambda: [2**64 - 1, 2**63, -2**63 - 1, 2**160],
    "floats": lambda: [0.0, -0.0, 1.5, 0.1, 1e300, 5e-324, math.inf, -math.inf, math.nan],
    "complex": lambda: [1 + 2j, complex(-0.0, math.inf)],
    "strings": lambda: ["", "plain", "ünïcödé", "日本語", "🙂", "a\nb\0c", "x" * 300, "'\"\\"],
    "bytes": lambda: [b"\0\x80\xff", b""],
    "bytearray": lambda: bytearray(b"changing"),
    "sizes": lambda: [torch.Size([2, 3, 4]), torch.Size([])],
    "dtypes": lambda: [torch.float32, torch.float64, torch.bfloat16, torch.bool, torch.float8_e4m3fn, torch.complex32],
    "devices": lambda: [torch.device("cpu"), torch.device("cuda:1"), torch.device("meta")],
    "layouts": lambda: [torch.strided, torch.sparse_coo, torch.sparse_csr],
    "empty": lambda: [[], (), {}, set(), collections.OrderedDict()],
    "tuples": lambda: ((1,), (1, 2), (1, "two", 3.0), (1, 2, 3, 4)),
    "set": lambda: {1, "a", (2, 3)},
    "nested_dict": lambda: {"a": 1, "b": {"c": [1, None], "d": {"e": (True, 2.5)}}},
    "dict_keys": lambda: {1: "int", "1": "str", 2.5: "float", (1, "x"): "tuple", None: "none", b"k": 1},
    "ordered_dict": lambda: collections.OrderedDict([("z", 1), ("a", 2), ("m", collections.OrderedDict(q=1))]),
    "counter": lambda: collections.Counter({"a": 5, "b": 2}),
    "deep": lambda: deep(200),
    "long_list": lambda: [i * i for i in range(3000)],
    "state_dict": state_dict,
    "run": run,
    "shared": shared,
    "shared_apart": shared_apart,
    "transposed": lambda: floats(12).view(3, 4).t(),
    "sliced": lambda: floats(100)[10:90:7],
    "expanded": lambda: floats(3).expand(4, 3),
    "channels_last": lambda: block().to(memory_format=torch.channels_last),
    "permuted": lambda: block().permute(3, 1, 0, 2)[:, 1],
    "empty_tensors": lambda: [torch.empty(0), torch.empty(3, 0, 2), torch.empty(0, dtype=torch.int8)],
    "no_dimensions": lambda: [torch.tensor(3.5), torch.tensor(True), floats(5)[3]],
    "many_dimensions": lambda: floats(128).view([2] * 7),
    "special_numbers": lambda: torch.tensor([math.inf, -math.inf, -0.0, 5e-324, math.nan], dtype=torch.float64),
    "requires_grad": lambda: torch.ones(3, requires_grad=True),
    "parameters": lambda: [nn.Parameter(floats(6).view(2, 3)), nn.Parameter(torch.arange(3), requires_grad=False)],
    "tied_parameters": lambda: (lambda tied: {"a": tied, "b": tied})(nn.Parameter(torch.zeros(4))),
    "conjugated": lambda: complex_numbers().conj(),
    "negated": lambda: complex_numbers().conj().imag,
    "sparse": sparse,
    "coalesced": lambda: sparse().coalesce(),
    "sparse_csr": lambda: floats(12).view(3, 4).to_sparse_csr(),
    "meta": lambda: torch.empty(3, 4, dtype=torch.float16, device="meta"),
}
# As LibTorch calls the dtypes.
DTYPES = {"Double": torch.float64, "Float": torch.float32, "Half": torch.float16, "BFloat16": torch.bfloat16,
          "Long": torch.int64, "Int": torch.int32, "Short": torch.int16, "Char": torch.int8, "Byte": torch.uint8,
          "Bool": torch.bool, "ComplexDouble": torch.complex128, "ComplexFloat": torch.complex64,
          "ComplexHalf": torch.complex32, "UInt16": torch.uint16, "UInt32": torch.uint32, "UInt64": torch.uint64,
          "Float8_e5m2": torch.float8_e5m2, "Float8_e4m3fn": torch.float8_e4m3fn,
          "Float8_e5m2fnuz": torch.float8_e5m2fnuz, "Float8_e4m3fnuz": torch.float8_e4m3fnuz,
          "Float8_e8m0fnu": torch.float8_e8m0fnu}
for _name, _dtype in DTYPES.items():
    EXPECTED["dtype_" + _name] = lambda dtype=_dtype: structures.of_dtype(dtype)


def main():
    failed = False
    for file in sorted(os.listdir(sys.argv[1])):
        name = file.removesuffix(".pt")
        try:
            structures.compare(EXPECTED[name](), torch.load(os.path.join(sys.argv[1], file), weights_only=True))
            print(name)
        except Exception as difference:
            failed = True
            print(f"{name}: {type(difference).__name__}: {difference}", file=sys.stderr)
    if failed:
        sys.exit(1)


if __name__ == "__main__":
    main()
