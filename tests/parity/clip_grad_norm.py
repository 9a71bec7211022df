# SPDX-License-Identifier: BSD-3-Clause
"""clip_grad_norm_test.cpp in Python: clip_grad_norm.py <folder> <world size>, like ddp_training.py. The norm and the
clipped gradients of a plain module, and the norm of one that fully_shard() distributes where Python has it."""
import math
import sys
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from ddp_training import run_everywhere

MAX_NORM = 0.125


class Net(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.fc1 = nn.Linear(4, 6, dtype=dtype)
        self.fc2 = nn.Linear(6, 5, dtype=dtype)
        self.one = nn.Parameter(torch.zeros(1, dtype=dtype))  # on rank 0 alone where it is distributed


def gradient(index, parameter):
    source = torch.Generator().manual_seed(index)
    numbers = torch.randn(*parameter.shape, 2, generator=source, dtype=torch.float64)
    values = torch.view_as_complex(numbers) if parameter.is_complex() else numbers[..., 0]
    return values.to(parameter.dtype, copy=True, memory_format=torch.contiguous_format)


def set_gradients(net):
    for index, parameter in enumerate(net.parameters()):
        values = gradient(index, parameter)
        if isinstance(parameter, DTensor):
            rows = -(-values.size(0) // dist.get_world_size())
            own = values.narrow(0, min(rows * dist.get_rank(), values.size(0)), parameter.to_local().size(0)).clone()
            values = DTensor.from_local(own, parameter.device_mesh, parameter.placements, shape=parameter.shape,
                                        stride=parameter.stride())
        parameter.grad = values


def bits(tensor):
    tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return tensor.detach().to(torch.float64).contiguous().view(-1).view(torch.float32)


def run_case(case):
    norm_type, dtype = float(case["norm_type"]), getattr(torch, case["dtype"])
    plain = Net(dtype)
    set_gradients(plain)
    norm = nn.utils.clip_grad_norm_(plain.parameters(), MAX_NORM, norm_type)
    records = [("plain", bits(norm)), *((name, bits(p.grad)) for name, p in plain.named_parameters())]
    # The others are an error where a rank has no element of a gradient.
    if 0 <= norm_type < math.inf:
        sharded = Net(dtype)
        fully_shard(sharded)
        set_gradients(sharded)
        norm = nn.utils.clip_grad_norm_(sharded.parameters(), MAX_NORM, norm_type).full_tensor()
        records.append(("sharded", bits(norm)))
    return records


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    run_everywhere(sys.argv[1], int(sys.argv[2]), run_case)
