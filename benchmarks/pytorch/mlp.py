# SPDX-License-Identifier: BSD-3-Clause
"""The Python twin of benchmarks/mlp.cpp: the same net, data and steps, over Gloo."""
import argparse
import contextlib
import json
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def parse_flags():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--steps", type=int, default=12)
    return parser.parse_args()


def main():
    flags = parse_flags()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = []
    for _ in range(flags.layers):
        layers += [nn.Linear(flags.width, flags.width), nn.ReLU()]
    ddp = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(ddp.parameters(), 1e-2)
    torch.manual_seed(1 + dist.get_rank())
    data = torch.randn(flags.batch_size, flags.width)
    spans = {True: [], False: []}
    for i in range(-3, 2 * flags.steps):
        reduces = i < 0 or i % 2 == 0
        dist.barrier()
        begin = time.perf_counter()
        with contextlib.nullcontext() if reduces else ddp.no_sync():
            optimizer.zero_grad()
            loss = ddp(data).pow(2).mean()
            loss.backward()
            optimizer.step()
            value = loss.item()
        dist.barrier()
        if i >= 0:
            spans[reduces].append(time.perf_counter() - begin)
    if dist.get_rank() == 0:
        print(json.dumps({"rank": 0, "backend": "gloo", "step_seconds": statistics.median(spans[True]),
                          "step_seconds_without_reduction": statistics.median(spans[False]), "loss": value}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
