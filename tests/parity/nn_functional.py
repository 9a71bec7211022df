# SPDX-License-Identifier: BSD-3-Clause
"""nn_functional_test.cpp in Python: nn_functional.py <folder> <world size>, like ddp_training.py."""
import sys
import warnings

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp
from torch.distributed.nn import functional as F

from ddp_training import run_everywhere

ROOT = 1


def empties(tensors):
    return [torch.empty_like(tensor) for tensor in tensors]


def call(op, x):
    """The outputs of which the loss is made."""
    rank, size = dist.get_rank(), dist.get_world_size()
    parts = list(x.chunk(size))
    if op == "all_reduce":
        return [F.all_reduce(x)]
    if op == "all_reduce_max":
        return [F.all_reduce(x, ReduceOp.MAX)]
    if op == "all_reduce_strided":
        return [F.all_reduce(x.t())]
    if op == "all_gather":
        return list(F.all_gather(x))
    if op == "all_gather_one":
        return [F.all_gather(x.t())[ROOT]]
    if op == "reduce_scatter":
        return [F.reduce_scatter(torch.empty_like(parts[0]), parts)]
    if op == "all_to_all":
        return list(F.all_to_all(empties(parts), parts))
    if op == "all_to_all_single":
        return [F.all_to_all_single(torch.empty_like(x), x)]
    if op == "all_to_all_uneven":
        # Rank r sends r + i rows to rank i.
        counts = [rank + i for i in range(size)]
        return [F.all_to_all_single(torch.empty(sum(counts), x.shape[1]), x[:sum(counts)], counts, counts)]
    if op == "broadcast":
        return [F.broadcast(x, ROOT)]
    if op == "reduce":
        return [F.reduce(x, ROOT).masked_fill(torch.tensor(rank != ROOT), 0)]
    if op == "gather":
        return list(F.gather(x, ROOT))
    if op == "scatter":
        return [F.scatter(parts, ROOT)]
    assert op == "chain"
    hidden = torch.cat(F.all_gather(x)) * x.repeat(size, 1)
    return [F.all_reduce(hidden * hidden), F.broadcast(hidden, 0)]


def run_case(case):
    torch.manual_seed(100 + dist.get_rank())
    size = dist.get_world_size()
    x = torch.randn(6 * size, 5, requires_grad=True)
    outputs = call(case["name"], x)
    loss = sum((output * output * torch.randn(output.shape)).sum() for output in outputs)
    gradient, = torch.autograd.grad(loss, x, create_graph=True)
    (gradient * gradient * gradient).sum().backward()
    return [("gradient", gradient), ("second", x.grad)] + [("output", output) for output in outputs]


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    run_everywhere(sys.argv[1], int(sys.argv[2]), run_case)
