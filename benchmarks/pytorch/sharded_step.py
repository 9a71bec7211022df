# SPDX-License-Identifier: BSD-3-Clause
"""The Python twin of benchmarks/sharded_step.cpp: the same nets, data and steps with fully_shard, over Gloo."""
import argparse
import json
import os
import statistics
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from ddp_step import NETS, seconds_of


def megabytes_of_all_ranks():
    dist.barrier()
    with open("/proc/self/smaps_rollup") as file:
        kibibytes = next(int(line.split()[1]) for line in file if line.startswith("Pss:"))
    total = torch.tensor([kibibytes / 1024], dtype=torch.float64)
    dist.all_reduce(total)
    return total.item()


def shard(net):
    for child in net.children():
        for layer in child.children():
            if list(layer.parameters()):
                fully_shard(layer)
    fully_shard(net)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--net", choices=NETS, default="mlp")
    parser.add_argument("--steps", type=int, default=10)
    flags = parser.parse_args()
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    make_net, draw = NETS[flags.net]
    torch.manual_seed(1)
    data = draw()
    torch.mm(torch.ones(64, 64), torch.ones(64, 64))
    base = megabytes_of_all_ranks()
    torch.manual_seed(0)
    net = make_net()
    if isinstance(net, nn.Sequential):
        net = nn.Sequential(net)  # as in C++, a module whose child has the layers
    parameters = sum(parameter.numel() for parameter in net.parameters())
    shard(net)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3, fused=True)

    def step():
        optimizer.zero_grad()
        loss = net(data).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    times = []
    for i in range(-3, flags.steps):
        dist.barrier()
        seconds, loss = seconds_of(step)
        if i >= 0:
            times.append(seconds)
    megabytes = megabytes_of_all_ranks() - base
    if dist.get_rank() == 0:
        print(json.dumps({"rank": 0, "seconds": statistics.median(times), "megabytes": megabytes,
                          "bytes_per_parameter": megabytes * 1024 * 1024 / parameters, "loss": loss}), flush=True)
    dist.barrier()
    os._exit(0)  # as in gpt.py; threads of the mesh can end the interpreter by std::terminate


if __name__ == "__main__":
    main()
