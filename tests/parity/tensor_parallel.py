# SPDX-License-Identifier: BSD-3-Clause
"""tensor_parallel_test.cpp in Python: tensor_parallel.py <folder> <world size>, like ddp_training.py."""
import contextlib
import sys
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel,
                                               loss_parallel, parallelize_module)
from torch.nn import functional as F

from ddp_training import run_everywhere

VOCABULARY, LENGTH, WIDTH, HEAD_DIM = 28, 8, 16, 4


class Block(nn.Module):
    def __init__(self, bias):
        super().__init__()
        self.ln1 = nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=bias) for _ in range(4))
        self.ln2 = nn.LayerNorm(WIDTH)
        self.fc1 = nn.Linear(WIDTH, 4 * WIDTH, bias=bias)
        self.fc2 = nn.Linear(4 * WIDTH, WIDTH, bias=bias)

    def forward(self, x):
        normed = self.ln1(x)
        q, k, v = (f(normed).view(x.size(0), -1, f.weight.to_local().size(0) // HEAD_DIM, HEAD_DIM).transpose(1, 2)
                   for f in (self.q, self.k, self.v))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.fc2(F.gelu(self.fc1(self.ln2(x))))


class Net(nn.Module):
    def __init__(self, bias):
        super().__init__()
        self.emb = nn.Embedding(VOCABULARY, WIDTH)
        self.pos = nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(Block(bias) for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.emb(tokens) + self.pos(torch.arange(tokens.size(1)).expand_as(tokens))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class MLP(nn.Module):
    def __init__(self, bias):
        super().__init__()
        self.fc1 = nn.Linear(WIDTH, 24, bias=bias)
        self.fc2 = nn.Linear(24, VOCABULARY, bias=bias)

    def forward(self, x):
        return self.fc2(torch.tanh(self.fc1(x)))


class Gated(nn.Module):
    def __init__(self, bias):
        super().__init__()
        self.gate, self.up, self.shift = (nn.Linear(WIDTH, 24, bias=bias) for _ in range(3))
        self.down = nn.Linear(24, VOCABULARY, bias=bias)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x) + self.shift(x))


def gpt_plan(sequence):
    whole = Replicate()
    if not sequence:
        layer = {"[qkv]": ColwiseParallel(), "o": RowwiseParallel(), "fc1": ColwiseParallel(), "fc2": RowwiseParallel()}
        ends = {"emb": RowwiseParallel(input_layouts=whole), "pos": ColwiseParallel(output_layouts=whole),
                "head": ColwiseParallel(output_layouts=whole)}
    else:
        inner, outer = ColwiseParallel(input_layouts=Shard(1)), RowwiseParallel(output_layouts=Shard(1))
        lookup = RowwiseParallel(input_layouts=whole, output_layouts=Shard(1))
        layer = {"[qkv]": inner, "o": outer, "fc1": inner, "fc2": outer, "ln?": SequenceParallel(use_local_output=True)}
        ends = {"emb": lookup, "pos": lookup, "norm": SequenceParallel(use_local_output=True),
                "head": ColwiseParallel(input_layouts=Shard(1), use_local_output=False)}
    return ends | {"layers.*." + name: style for name, style in layer.items()}


def own_part(tensor, placements):
    """This rank's, of gradients in the layout of their parameters."""
    if isinstance(tensor, DTensor):
        tensor = tensor.redistribute(placements=placements).to_local()
    return tensor.detach()


def run_case(case):
    shards = int(case["shards"])
    mesh = init_device_mesh("cpu", (shards, dist.get_world_size() // shards), mesh_dim_names=("dp", "tp"))
    is_gpt, sequence = case["net"] == "gpt", case["sequence"] == "1"
    torch.manual_seed(40)
    net = {"mlp": MLP, "gpt": Net, "gated": Gated}[case["net"]](case["bias"] == "1")
    rows = Shard(0) if sequence else Replicate()
    plan = {"mlp": {"fc1": ColwiseParallel(), "fc2": RowwiseParallel()}, "gpt": gpt_plan(sequence),
            "gated": {"": PrepareModuleInput(input_layouts=rows, desired_input_layouts=Replicate()),
                      "gate": ColwiseParallel(), "up": ColwiseParallel(), "shift": ColwiseParallel(),
                      "down": RowwiseParallel()}}[case["net"]]
    parallelize_module(net, mesh["tp"], plan)
    if shards > 1:
        for layer in net.layers if is_gpt else []:
            fully_shard(layer, mesh=mesh["dp"])
        fully_shard(net, mesh=mesh["dp"])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    records = []
    for step in range(2):
        torch.manual_seed(step + 10 * mesh.get_local_rank("dp"))
        optimizer.zero_grad()
        if not is_gpt:
            x, target = torch.randn(8, WIDTH), torch.randint(VOCABULARY, (8,))
            if sequence:
                x = x.chunk(mesh["tp"].size())[mesh.get_local_rank("tp")]
            x.requires_grad_()
        else:
            tokens = torch.randint(VOCABULARY, (3, LENGTH + 1))
            x, target = tokens[:, :-1], tokens[:, 1:].reshape(-1)
        with loss_parallel() if sequence and is_gpt else contextlib.nullcontext():
            loss = F.cross_entropy(net(x).reshape(-1, VOCABULARY), target)
            loss.backward()
        records += [("loss", own_part(loss, [Replicate()]).reshape(1))]
        records += [] if is_gpt else [("x", x.grad)]
        records += [(name, own_part(p.grad, getattr(p, "placements", None)).clone()) for name, p in net.named_parameters()]
        optimizer.step()
    return records


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    run_everywhere(sys.argv[1], int(sys.argv[2]), run_case)
