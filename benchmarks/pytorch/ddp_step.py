# SPDX-License-Identifier: BSD-3-Clause
"""The Python twin of benchmarks/ddp_step.cpp: the same nets, data and steps, over Gloo."""
import argparse
import json
import pathlib
import resource
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests/parity"))
import models  # noqa: E402


def chain():
    return nn.Sequential(*(nn.Linear(32, 32) for _ in range(200)))


def mlp():
    layers = []
    for _ in range(4):
        layers += [nn.Linear(4096, 4096), nn.ReLU()]
    return nn.Sequential(*layers)


def gpt():
    return models.Gpt(vocabulary=1024, context=64, width=256, heads=8, layers=4)


NETS = {
    "resnet18": (models.ResNet18, lambda: torch.randn(4, 3, 32, 32)),
    "gpt": (gpt, lambda: torch.randint(1024, (2, 64))),
    "mlp": (mlp, lambda: torch.randn(8, 4096)),
    "chain": (chain, lambda: torch.randn(8, 32)),
}


def make_step(model, data):
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)

    def step():
        optimizer.zero_grad()
        loss = model(data).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def seconds_of(step):
    begin = time.perf_counter()
    loss = step()
    return time.perf_counter() - begin, loss


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--net", choices=NETS, default="resnet18")
    parser.add_argument("--mode", choices=["both", "ddp"], default="both")
    parser.add_argument("--steps", type=int, default=20)
    flags = parser.parse_args()
    dist.init_process_group("gloo")
    make_net, draw = NETS[flags.net]
    torch.manual_seed(1)
    data = draw()
    torch.manual_seed(0)
    bare = make_step(make_net(), data) if flags.mode == "both" else None
    torch.manual_seed(0)
    wrapped = make_step(DistributedDataParallel(make_net(), gradient_as_bucket_view=True), data)
    times = {"bare": [], "ddp": []}
    for i in range(-3, flags.steps):
        dist.barrier()
        of_bare, loss = seconds_of(bare) if bare else (0, 0)
        dist.barrier()
        of_wrapped, loss = seconds_of(wrapped)
        if i >= 0:
            times["bare"].append(of_bare)
            times["ddp"].append(of_wrapped)
    if dist.get_rank() == 0:
        print(json.dumps({"rank": 0, "bare_seconds": statistics.median(times["bare"]),
                          "ddp_seconds": statistics.median(times["ddp"]),
                          "peak_megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
                          "loss": loss}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
