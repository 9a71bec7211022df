# SPDX-License-Identifier: BSD-3-Clause
"""fully_shard_test.cpp in Python: fully_shard.py <folder> <world size>, like ddp_training.py."""
import dataclasses
import sys
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.distributed.tensor import DTensor, Shard

from ddp_training import run_everywhere

IS_2_15 = tuple(int(number) for number in torch.__version__.split(".")[:2]) >= (2, 15)


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
        self.head = nn.Module()
        self.head.weight = self.embedding.weight
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


class Wide(nn.Module):
    """Sizes that two and four ranks divide, in every dimension but one; tied."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.embedding = nn.Embedding(11, 8)
        self.out = nn.Linear(12, 8)
        self.mix = nn.Parameter(torch.randn(4, 8, 12))

    def forward(self, tokens, uses_all):
        x = self.out(torch.matmul(self.embedding(tokens).flatten(0, 1), self.mix).tanh().mean(0))
        return torch.matmul(x, self.embedding.weight.t()).logsumexp(-1).mean()

    def children_to_shard(self):
        return [self.out]


class Residual(nn.Module):
    """Float inputs and outputs in dictionaries, whatever the parameters' type is."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(9)
        self.first = nn.Linear(8, 6)
        self.second = nn.Linear(6, 8)

    def forward(self, inputs, uses_all):
        x = inputs["x"] + self.second(self.first(inputs["x"]).tanh())
        return {"x": x, "sum": x.sum(-1)} if uses_all else {"x": x}

    def children_to_shard(self):
        return [self.first]


def loss_of(net, tokens, uses_all):
    if not isinstance(net, Residual):
        return net(tokens, uses_all)
    outputs = net({"x": tokens.repeat(1, 2) / 11}, uses_all)
    assert all(each.dtype == torch.float32 for each in outputs.values())
    return sum(each.pow(2).mean() for each in outputs.values())


def columns(parameter):
    return {1: None, 2: Shard(-1), 3: Shard(1)}[parameter.dim()]


def policy(**options):
    """From torch 2.15 on gradients are by default reduced in the dtype of the shards."""
    return MixedPrecisionPolicy(**({} if IS_2_15 else {"reduce_dtype": torch.float32}) | options)


def add_as_torch_2_15():
    """Autograd adds the gradients of a pass in the dtype in which it computes them, unless it is the first of several."""
    pre_backward = FSDPParamGroup.pre_backward

    def before(self, *arguments):
        pre_backward(self, *arguments)
        for each in self.fsdp_params:
            defers = self.reduce_grads or each.unsharded_accumulated_grad is not None
            each.unsharded_param.grad_dtype = None if defers else each.reduce_dtype or each.unsharded_param.dtype

    FSDPParamGroup.pre_backward = before


if not IS_2_15:
    add_as_torch_2_15()


def run_case(case):
    ranks = dist.get_world_size()
    mesh = (init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("replicate", "shard"))
            if case["mesh"] == "hybrid" else init_device_mesh("cpu", (ranks,)))
    mixed = {"float": MixedPrecisionPolicy(),
              "half": policy(param_dtype=torch.float16),
              "bf16": policy(param_dtype=torch.bfloat16),
              "bf16_float": policy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
              "bf16_output": policy(param_dtype=torch.bfloat16, output_dtype=torch.float32)}[case["dtype"]]
    reshard = {"default": None, "true": True, "false": False, "2": 2}[case["reshard"]]
    net = {"odd": OddNet, "stack": Stack, "wide": Wide, "residual": Residual}[case["net"]]()
    children_policy = dataclasses.replace(mixed, output_dtype=None)
    options = {"mesh": mesh, "reshard_after_forward": reshard, "mp_policy": mixed,
               "shard_placement_fn": columns if case["placement"] == "columns" else None,
               "ignored_params": {p for name, p in net.named_parameters() if name == case["ignored"]}}
    if case["groups"] == "children":
        for child in net.children_to_shard():
            fully_shard(child, **{**options, "mp_policy": children_policy})
    elif case["groups"] == "nested":
        fully_shard(net.children_to_shard()[0], **{**options, "mp_policy": children_policy})
        for child in net.children():
            fully_shard(child, **{**options, "mp_policy": children_policy})
    fully_shard(net, **options)
    shards = [p for p in net.parameters() if isinstance(p, DTensor)]
    optimizer = (torch.optim.AdamW(shards, lr=1e-2, fused=True) if case["optimizer"] == "adamw"
                 else torch.optim.SGD(shards, lr=1e-2, momentum=0.9))
    accumulated = int(case["accumulate"])
    losses = []
    steps = int(case["steps"])
    for step in range(steps):
        optimizer.zero_grad()
        if case["unshard"] == "true":
            if step == steps // 2:
                net.set_reshard_after_forward(False)
            net.unshard()
        for part in range(accumulated):
            is_last = part == accumulated - 1
            net.set_requires_gradient_sync(is_last or case["sync"] == "always")
            if case["all_reduce"] == "last":
                net.set_requires_all_reduce(is_last)
            net.set_reshard_after_backward(is_last or case["keep"] == "false")
            torch.manual_seed(1000 * step + 10 * part + dist.get_rank())
            uses_all = (step + part) % 2 == 1
            loss = loss_of(net, torch.randint(11, (2, 4)), uses_all)
            if case["forwards"] == "2":
                loss = loss + loss_of(net, torch.randint(11, (2, 4)), uses_all)
            loss.backward()
            losses.append(loss.detach().float())
        optimizer.step()
    records = [("loss", torch.stack(losses))]
    for name, parameter in net.named_parameters():
        records.append((name, local(parameter)))
        if parameter.grad is not None:
            records.append((name + ".grad", local(parameter.grad)))
    return records


def local(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    run_everywhere(sys.argv[1], int(sys.argv[2]), run_case)
