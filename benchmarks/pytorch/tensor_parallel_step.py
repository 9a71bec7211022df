# SPDX-License-Identifier: BSD-3-Clause
"""The Python twin of benchmarks/tensor_parallel_step.cpp: the same nets, plans and data, over Gloo."""
import argparse
import contextlib
import json
import os
import pathlib
import statistics
import sys
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, loss_parallel, parallelize_module
from torch.nn import functional as F

from ddp_step import seconds_of

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "parity"))
import tensor_parallel as nets  # noqa: E402

PAIR_WIDTH, PAIR_HIDDEN, PAIR_ROWS = 1024, 4096, 16
BATCH, LAYERS = 8, 4
nets.VOCABULARY, nets.LENGTH, nets.WIDTH, nets.HEAD_DIM = 1024, 64, 256, 32


def time_each(count, action):
    times = []
    for i in range(-3, count):
        dist.barrier()
        seconds, _ = seconds_of(action)
        if i >= 0:
            times.append(seconds)
    return times


def time_pair(mesh, count):
    torch.manual_seed(0)
    pair = nn.Sequential(nn.Linear(PAIR_WIDTH, PAIR_HIDDEN, bias=False), nn.Linear(PAIR_HIDDEN, PAIR_WIDTH, bias=False))
    parallelize_module(pair, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})
    data = torch.randn(PAIR_ROWS, PAIR_WIDTH)
    with torch.no_grad():
        return time_each(10 * count, lambda: pair(data))


def time_gpt(mesh, sequence, count):
    torch.manual_seed(0)
    net = nets.Net(True)
    net.layers = nn.ModuleList(nets.Block(True) for _ in range(LAYERS))
    parallelize_module(net, mesh, nets.gpt_plan(sequence))
    optimizer = torch.optim.SGD(net.parameters(), 1e-3, foreach=False)
    torch.manual_seed(1)
    tokens = torch.randint(nets.VOCABULARY, (BATCH, nets.LENGTH + 1))
    data, target = tokens[:, :-1], tokens[:, 1:].reshape(-1)

    def step():
        optimizer.zero_grad()
        with loss_parallel() if sequence else contextlib.nullcontext():
            loss = F.cross_entropy(net(data).reshape(-1, nets.VOCABULARY), target)
            loss.backward()
        optimizer.step()
        return loss.item() if not sequence else loss.full_tensor().item()

    return time_each(count, step)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequence", action="store_true")
    parser.add_argument("--steps", type=int, default=20)
    flags = parser.parse_args()
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    times = {"pair": time_pair(mesh, flags.steps), "gpt": time_gpt(mesh, flags.sequence, flags.steps)}
    if dist.get_rank() == 0:
        print(json.dumps({"rank": 0, **{name: statistics.median(each) for name, each in times.items()}}), flush=True)
    dist.barrier()
    os._exit(0)  # as in gpt.py


if __name__ == "__main__":
    main()
