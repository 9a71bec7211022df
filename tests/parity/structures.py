# SPDX-License-Identifier: BSD-3-Clause
"""Contents of checkpoints: structures.py make|check <folder>

make:  writes every structure to <folder>/<name>.pt, as torch.save does (".legacy" in the name: in the older format).
check: compares each with <folder>/<name>.out.pt, which the other side wrote after reading it; prints the names of
       those that are the same, and ends with an error that tells what differs.
"""

import collections
import math
import os
import sys

import torch
from torch import nn

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.complex128, torch.complex64, torch.complex32, torch.uint16, torch.uint32,
    torch.uint64, torch.float8_e5m2, torch.float8_e4m3fn, torch.float8_e5m2fnuz, torch.float8_e4m3fnuz,
    torch.float8_e8m0fnu,
]


def of_dtype(dtype):
    size = torch.empty(0, dtype=dtype).element_size()
    values = torch.arange(1, 12 * size + 1, dtype=torch.int64).to(torch.uint8)
    if dtype == torch.bool:
        values = values % 2
    return values.view(dtype).reshape(3, 4)


def shared():
    base = torch.arange(24.0)
    return {"base": base, "rows": base.view(4, 6), "column": base.view(4, 6)[:, 2], "same": base,
            "tail": base[20:], "other": torch.arange(24.0)}


def bottleneck_net(blocks, classes):
    """The names and shapes of a ResNet-50, without its forward()."""

    class Block(nn.Module):
        def __init__(self, inputs, planes, downsample):
            super().__init__()
            self.conv1 = nn.Conv2d(inputs, planes, 1, bias=False)
            self.bn1 = nn.BatchNorm2d(planes)
            self.conv2 = nn.Conv2d(planes, planes, 3, bias=False)
            self.bn2 = nn.BatchNorm2d(planes)
            self.conv3 = nn.Conv2d(planes, planes * 4, 1, bias=False)
            self.bn3 = nn.BatchNorm2d(planes * 4)
            if downsample:
                self.downsample = nn.Sequential(nn.Conv2d(inputs, planes * 4, 1, bias=False), nn.BatchNorm2d(planes * 4))

    net = nn.Module()
    net.conv1 = nn.Conv2d(3, 64, 7, bias=False)
    net.bn1 = nn.BatchNorm2d(64)
    inputs = 64
    for layer, count in enumerate(blocks):
        planes = 64 << layer
        stack = []
        for i in range(count):
            stack.append(Block(inputs, planes, i == 0))
            inputs = planes * 4
        setattr(net, f"layer{layer + 1}", nn.Sequential(*stack))
    net.fc = nn.Linear(inputs, classes)
    return net


def gpt2(layers, width, words, context):
    net = nn.Module()
    net.wte = nn.Embedding(words, width)
    net.wpe = nn.Embedding(context, width)
    net.h = nn.ModuleList()
    for _ in range(layers):
        block = nn.Module()
        block.ln_1 = nn.LayerNorm(width)
        block.c_attn = nn.Linear(width, 3 * width)
        block.c_proj = nn.Linear(width, width)
        block.ln_2 = nn.LayerNorm(width)
        block.c_fc = nn.Linear(width, 4 * width)
        block.c_proj2 = nn.Linear(4 * width, width)
        net.h.append(block)
    net.ln_f = nn.LayerNorm(width)
    net.lm_head = nn.Linear(width, words, bias=False)
    net.lm_head.weight = net.wte.weight  # tied
    return net


def trained(net, optimizer):
    for parameter in net.parameters():
        parameter.grad = torch.full_like(parameter, 0.01)
    optimizer.step()
    optimizer.zero_grad()
    return {"epoch": 3, "arch": type(net).__name__, "state_dict": net.state_dict(), "best_acc": 0.75,
            "optimizer": optimizer.state_dict()}


def small_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2))


def with_optimizer(make):
    net = small_net()
    return trained(net, make(net.parameters()))


def closure_steps():
    net = nn.Linear(3, 2)
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=3)
    inputs = torch.randn(5, 3)

    def closure():
        optimizer.zero_grad()
        loss = net(inputs).pow(2).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    return optimizer.state_dict()


def scheduler():
    optimizer = torch.optim.SGD(small_net().parameters(), 0.1)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 5, 9])
    optimizer.step()
    schedule.step()
    return schedule.state_dict()


def sparse():
    return torch.sparse_coo_tensor([[0, 2, 2], [1, 0, 2]], [1.0, 2.0, 3.0], (3, 4))


def compressed(layout):
    dense = torch.zeros(4, 4)
    dense[0, 1], dense[2, 3], dense[3, 0] = 1, 2, 3
    block = (2, 2) if layout in (torch.sparse_bsr, torch.sparse_bsc) else None
    return dense.to_sparse(layout=layout, blocksize=block)


def deep(levels):
    value = [1]
    for _ in range(levels):
        value = [value]
    return value


STRUCTURES = {
    "none": lambda: None,
    "true": lambda: True,
    "false": lambda: False,
    "ints": lambda: [0, 1, -1, 255, 256, 65535, 65536, -129, 2**31 - 1, 2**31, -2**31, -2**31 - 1, 2**63 - 1, -2**63],
    "big_ints": lambda: [2**63, 2**64 - 1, -2**63 - 1, 10**30, -10**30, 2**255],
    "floats": lambda: [0.0, -0.0, 1.5, -2.25, 1e300, 5e-324, math.inf, -math.inf, 0.1],
    "complex": lambda: [1 + 2j, complex(0, -1), complex(math.inf, 0)],
    "strings": lambda: ["", "plain", "ünïcödé", "日本語", "🙂", "a\nb\0c", "x" * 300, "'quoted'"],
    "bytes": lambda: [b"x", bytes(range(256))],
    "bytearray": lambda: bytearray(range(200, 256)),
    "empty_list": lambda: [],
    "empty_tuple": lambda: (),
    "empty_dict": lambda: {},
    "empty_ordered_dict": lambda: collections.OrderedDict(),
    "list": lambda: [1, "two", 3.0, None, [True, [False]]],
    "tuples": lambda: ((1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), ((),)),
    "set": lambda: {1, "a", (2, 3)},
    "empty_set": lambda: set(),
    "dict": lambda: {"a": 1, "b": {"c": [1, 2]}},
    "dict_keys": lambda: {1: "int", "1": "str", 2.5: "float", (1, "x"): "tuple", None: "none", True + 2: "three", b"k": 1},
    "dict_order": lambda: {str(i * 7919 % 100): i for i in range(100)},
    "ordered_dict": lambda: collections.OrderedDict([("z", 1), ("a", 2), ("m", collections.OrderedDict(q=1))]),
    "counter": lambda: collections.Counter("abracadabra"),
    "long_list": lambda: list(range(5000)),
    "many_keys": lambda: {f"key{i}": i for i in range(5000)},
    "deep": lambda: deep(200),
    "repeated_list": lambda: [[1, 2]] * 3,
    "size": lambda: [torch.Size([2, 3, 4]), torch.Size([])],
    "dtypes": lambda: [dtype for dtype in DTYPES],
    "devices": lambda: [torch.device("cpu"), torch.device("cuda:1"), torch.device("cuda"), torch.device("meta")],
    "layouts": lambda: [torch.strided, torch.sparse_coo, torch.sparse_csr, torch.sparse_bsc],
    "scalar_tensor": lambda: torch.tensor(3.5),
    "empty_tensor": lambda: [torch.empty(0), torch.empty(3, 0, 2), torch.empty(0, dtype=torch.int8)],
    "tensor_1d": lambda: torch.arange(10),
    "tensor_7d": lambda: torch.arange(2.0**7).reshape([2] * 7),
    "nan_free_specials": lambda: torch.tensor([math.inf, -math.inf, -0.0, 5e-324]),
    "transposed": lambda: torch.arange(12.0).reshape(3, 4).t(),
    "sliced": lambda: torch.arange(100.0)[10:90:7],
    "expanded": lambda: torch.arange(3.0).expand(4, 3),
    "channels_last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "shared": shared,
    "shared_across": lambda: (lambda w: [{"weight": w}, {"weight": w, "bias": w[0]}])(torch.randn(3, 3)),
    "requires_grad": lambda: torch.ones(3, requires_grad=True),
    "parameter": lambda: nn.Parameter(torch.randn(2, 3)),
    "frozen_parameter": lambda: nn.Parameter(torch.arange(3), requires_grad=False),
    "parameters": lambda: list(small_net().parameters()),
    "conjugated": lambda: torch.tensor([1 + 2j, 3 - 4j]).conj(),
    "negated": lambda: torch.tensor([1 + 2j, 3 - 4j]).conj().imag,
    "sparse_coo": sparse,
    "sparse_coalesced": lambda: sparse().coalesce(),
    "sparse_csr": lambda: compressed(torch.sparse_csr),
    "sparse_csc": lambda: compressed(torch.sparse_csc),
    "sparse_bsr": lambda: compressed(torch.sparse_bsr),
    "sparse_bsc": lambda: compressed(torch.sparse_bsc),
    "meta": lambda: torch.empty(3, 4, device="meta", dtype=torch.float16),
    "state_dict": lambda: small_net().state_dict(),
    "lstm": lambda: nn.LSTM(3, 4, num_layers=2, bidirectional=True).state_dict(),
    "transformer": lambda: nn.TransformerEncoderLayer(8, 2, 16).state_dict(),
    "data_parallel": lambda: nn.DataParallel(small_net()).state_dict(),
    "generator_state": lambda: {"cpu": torch.manual_seed(5).get_state(), "seed": 2**64 - 5},
    "sgd": lambda: with_optimizer(lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=1e-4, nesterov=True)),
    "sgd_plain": lambda: with_optimizer(lambda p: torch.optim.SGD(p, 0.1)),
    "adam": lambda: with_optimizer(lambda p: torch.optim.Adam(p, 1e-3, amsgrad=True)),
    "adamw": lambda: with_optimizer(lambda p: torch.optim.AdamW(p, 1e-3)),
    "rmsprop": lambda: with_optimizer(lambda p: torch.optim.RMSprop(p, 1e-3, centered=True, momentum=0.5)),
    "adagrad": lambda: with_optimizer(lambda p: torch.optim.Adagrad(p, 1e-2)),
    "lbfgs": closure_steps,
    "scheduler": scheduler,
    "grad_scaler": lambda: {"scale": 65536.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2000,
                            "_growth_tracker": 0},
    "resnet50": lambda: trained(net := bottleneck_net([3, 4, 6, 3], 1000), torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)),
    "tensors_1000": lambda: {f"t{i}": torch.full((i % 7,), float(i)) for i in range(1000)},
    "legacy_structure.legacy": lambda: {"a": [1, (2.5, None)], "s": "x", "b": b"bytes"},
    "legacy_shared.legacy": shared,
    "legacy_state_dict.legacy": lambda: small_net().state_dict(),
    "legacy_adam.legacy": lambda: with_optimizer(lambda p: torch.optim.Adam(p, 1e-3)),
    "legacy_sparse.legacy": sparse,
    "legacy_bfloat16.legacy": lambda: {"all": of_dtype(torch.bfloat16), "view": of_dtype(torch.bfloat16)[:, 1:]},
    "legacy_complex.legacy": lambda: [1 + 2j, of_dtype(torch.complex64), of_dtype(torch.complex128).t(),
                                      torch.tensor([1 + 2j, 3 - 4j]).conj()],
    "legacy_parameter.legacy": lambda: [nn.Parameter(torch.randn(2, 3)), nn.Parameter(torch.arange(3), requires_grad=False)],
}
for _dtype in DTYPES:
    STRUCTURES["tensor_" + str(_dtype)[6:]] = lambda dtype=_dtype: of_dtype(dtype)

# Of their own: they take a while.
LARGE = {
    "gpt2": lambda: trained(net := gpt2(12, 768, 50257, 1024), torch.optim.AdamW(net.parameters(), 1e-3)),
}


class Difference(Exception):
    pass


def bits(tensor):
    return tensor.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


def same_tensor(a, b, where):
    for what in ("dtype", "shape", "layout", "device", "requires_grad"):
        if getattr(a, what) != getattr(b, what):
            raise Difference(f"{where}: {what} {getattr(b, what)} instead of {getattr(a, what)}")
    if a.layout != torch.strided:
        if a.layout == torch.sparse_coo:
            if a.is_coalesced() != b.is_coalesced():
                raise Difference(f"{where}: coalesced or not")
            a, b = a.coalesce(), b.coalesce()
        a, b = a.to_dense(), b.to_dense()
    elif a.device.type != "meta":
        for what in ("stride", "storage_offset", "is_conj", "is_neg"):
            if getattr(a, what)() != getattr(b, what)():
                raise Difference(f"{where}: {what}() {getattr(b, what)()} instead of {getattr(a, what)()}")
        if a.untyped_storage().nbytes() != b.untyped_storage().nbytes():
            raise Difference(f"{where}: another size of storage")
    if a.device.type == "meta":
        return
    # NaN is equal to no number, and some dtypes cannot be compared at all.
    if not torch.equal(bits(a), bits(b)):
        raise Difference(f"{where}: other numbers")


def same(a, b, where, tensors):
    if type(a) is not type(b):
        raise Difference(f"{where}: {type(b)} instead of {type(a)}")
    if isinstance(a, torch.Tensor):
        same_tensor(a.detach() if isinstance(a, nn.Parameter) else a, b.detach() if isinstance(b, nn.Parameter) else b, where)
        if a.requires_grad != b.requires_grad:
            raise Difference(f"{where}: requires_grad")
        tensors.append((a, b))
    elif isinstance(a, dict):
        if list(a) != list(b):
            raise Difference(f"{where}: keys {list(b)[:10]} instead of {list(a)[:10]}")
        for key in a:
            same(a[key], b[key], f"{where}[{key!r}]", tensors)
        if isinstance(a, collections.OrderedDict):
            same(dict(a.__dict__), dict(b.__dict__), f"{where}.__dict__", tensors)
    elif isinstance(a, (list, tuple)):
        if len(a) != len(b):
            raise Difference(f"{where}: {len(b)} items instead of {len(a)}")
        for i, (x, y) in enumerate(zip(a, b)):
            same(x, y, f"{where}[{i}]", tensors)
    elif isinstance(a, float):
        if a.hex() != b.hex():
            raise Difference(f"{where}: {b} instead of {a}")
    elif a != b:
        raise Difference(f"{where}: {b!r} instead of {a!r}")


def sharing(tensors):
    """Which tensors are one object, and which share a storage, as numbers of the first one that does."""
    objects, storages, pattern = {}, {}, []
    for tensor in tensors:
        stored = tensor.layout == torch.strided and tensor.device.type != "meta" and tensor.untyped_storage().nbytes() > 0
        cell = tensor.untyped_storage()._cdata if stored else None
        pattern.append((objects.setdefault(id(tensor), len(objects)), storages.setdefault(cell, len(storages))))
    return pattern


def compare(a, b):
    tensors = []
    same(a, b, "it", tensors)
    if sharing([x for x, _ in tensors]) != sharing([y for _, y in tensors]):
        raise Difference("what shares storage no longer does, or the other way round")


def main():
    what, folder, group = sys.argv[1:4]
    structures = LARGE if group == "large" else STRUCTURES
    failed = False
    for name, make in structures.items():
        path = os.path.join(folder, name + ".pt")
        if what == "make":
            torch.manual_seed(1)
            torch.save(make(), path, _use_new_zipfile_serialization=not name.endswith(".legacy"))
            continue
        try:
            compare(torch.load(path, weights_only=True, mmap=group == "large"),
                    torch.load(os.path.join(folder, name + ".out.pt"), weights_only=True, mmap=group == "large"))
            print(name)
        except Exception as difference:
            failed = True
            print(f"{name}: {type(difference).__name__}: {difference}", file=sys.stderr)
    if failed:
        sys.exit(1)


if __name__ == "__main__":
    main()
