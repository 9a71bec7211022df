# SPDX-License-Identifier: BSD-3-Clause
"""fully_shard_test.cpp in Python: fully_shard.py <folder> <world size>, like ddp_training.py."""
import sys
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from ddp_training import run_everywhere

STEPS = 20


class OddNet(nn.Module):
    """Parameters of odd sizes, tied, frozen, used twice, and unused in some steps."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(7)
        self.embedding = nn.Embedding(11, 6)
        self.lstm = nn.LSTM(6, 5, batch_first=True)
        self.twice = nn.Linear(5, 5)
        self.frozen = nn.Linear(5, 6)
        self.sometimes = nn.Linear(6, 3)
        self.norm = nn.LayerNorm(6)
        self.scale = nn.Parameter(torch.ones(1))
        self.frozen.requires_grad_(False)

    def forward(self, tokens, uses_all):
        x = self.lstm(self.embedding(tokens))[0].flatten(0, 1)
        x = self.norm(self.frozen(self.twice(self.twice(x).tanh()))) * self.scale
        loss = torch.matmul(x, self.embedding.weight.t()).logsumexp(-1).mean()
        return loss + self.sometimes(x).pow(2).mean() if uses_all else loss

    def children_to_shard(self):
        return [self.lstm, self.twice, self.frozen, self.sometimes]


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.layers = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 9), nn.Tanh(), nn.Linear(9, 4))

    def forward(self, tokens, uses_all):
        x = tokens.to(self.layers[0].weight.dtype) / 11
        return self.layers(torch.cat([x, x[:, :2]], 1)).pow(2).mean()

    def children_to_shard(self):
        return [self.layers[0], self.layers[2], self.layers[4]]


def run_case(case):
    ranks = dist.get_world_size()
    mesh = (init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("replicate", "shard"))
            if case["mesh"] == "hybrid" else init_device_mesh("cpu", (ranks,)))
    policy = {"float": MixedPrecisionPolicy(),
              "bf16": MixedPrecisionPolicy(param_dtype=torch.bfloat16),
              "bf16_float": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)}[case["dtype"]]
    reshard = {"default": None, "true": True, "false": False, "2": 2}[case["reshard"]]
    net = OddNet() if case["net"] == "odd" else Stack()
    if case["groups"] == "children":
        for child in net.children_to_shard():
            fully_shard(child, mesh=mesh, reshard_after_forward=reshard, mp_policy=policy)
    fully_shard(net, mesh=mesh, reshard_after_forward=reshard, mp_policy=policy)
    optimizer = (torch.optim.AdamW(net.parameters(), lr=1e-2, fused=True) if case["optimizer"] == "adamw"
                 else torch.optim.SGD(net.parameters(), lr=1e-2, momentum=0.9))
    accumulated = int(case["accumulate"])
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        for part in range(accumulated):
            net.set_requires_gradient_sync(part == accumulated - 1)
            torch.manual_seed(1000 * step + 10 * part + dist.get_rank())
            loss = net(torch.randint(11, (2, 4)), (step + part) % 2 == 1)
            loss.backward()
            losses.append(loss.detach().float())
        optimizer.step()
    records = [("loss", torch.stack(losses))]
    for name, parameter in net.named_parameters():
        records.append((name, parameter.to_local()))
        if parameter.grad is not None:
            records.append((name + ".grad", parameter.grad.to_local()))
    return records


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    run_everywhere(sys.argv[1], int(sys.argv[2]), run_case)
