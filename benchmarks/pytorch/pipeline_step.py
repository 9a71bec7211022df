# SPDX-License-Identifier: BSD-3-Clause
"""The Python twin of benchmarks/pipeline_step.cpp: the same nets, data and schedules, over Gloo."""
import argparse
import json
import logging
import os
import statistics
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleSingle, get_schedule_class
from torch.nn import functional as F

from ddp_step import models, seconds_of

LAYERS, MLP_WIDTH, MLP_BATCH = 8, 1024, 512
VOCABULARY, WIDTH, HEADS, LENGTH, GPT_BATCH = 1024, 256, 8, 64, 32


class Embedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)

    def forward(self, ids):
        return self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))


def make_stage(net, stage, stages):
    torch.manual_seed(stage)
    layers = [Embedding()] if net == "gpt" and stage == 0 else []
    for _ in range(LAYERS // stages):
        layers += [models.GptBlock(WIDTH, HEADS)] if net == "gpt" else [nn.Linear(MLP_WIDTH, MLP_WIDTH), nn.Tanh()]
    if net == "gpt" and stage + 1 == stages:
        layers += [nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)]
    return nn.Sequential(*layers)


def make_batch(net):
    torch.manual_seed(1)
    if net == "gpt":
        return torch.randint(VOCABULARY, (GPT_BATCH, LENGTH)), torch.randint(VOCABULARY, (GPT_BATCH, LENGTH))
    return torch.randn(MLP_BATCH, MLP_WIDTH), torch.randn(MLP_BATCH, MLP_WIDTH)


def loss_of(net):
    return F.mse_loss if net == "mlp" else lambda y, target: F.cross_entropy(y.flatten(0, 1), target.flatten())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--net", choices=["mlp", "gpt"], default="mlp")
    parser.add_argument("--schedule", default="1F1B")
    parser.add_argument("--stages", type=int, default=1)
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--steps", type=int, default=20)
    flags = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    total = ranks * flags.stages
    is_v = flags.schedule in ("ZBVZeroBubble", "DualPipeV")
    indices = [rank, total - 1 - rank] if is_v else list(range(rank, total, ranks))
    modules = {index: make_stage(flags.net, index, total) for index in indices}
    stages = [PipelineStage(module, index, total, torch.device("cpu")) for index, module in modules.items()]
    kind = get_schedule_class(flags.schedule)
    single = issubclass(kind, PipelineScheduleSingle)
    schedule = kind(stages[0] if single else stages, flags.microbatches, loss_fn=loss_of(flags.net))
    optimizer = torch.optim.SGD([p for module in modules.values() for p in module.parameters()], 1e-3, foreach=False)
    data, target = make_batch(flags.net)

    def step():
        optimizer.zero_grad()
        losses = []
        schedule.step(*([data] if 0 in modules else []), target=target, losses=losses, return_outputs=False)
        optimizer.step()
        return torch.stack(losses).mean().item() if losses else 0.0

    times = []
    for i in range(-3, flags.steps):
        dist.barrier()
        seconds, loss = seconds_of(step)
        if i >= 0:
            times.append(seconds)
    total_loss = torch.tensor([loss], dtype=torch.float64)
    dist.all_reduce(total_loss)
    if rank == 0:
        print(json.dumps({"rank": 0, "seconds": statistics.median(times), "loss": total_loss.item()}), flush=True)
    dist.barrier()
    os._exit(0)  # as in gpt.py; threads of the mesh can end the interpreter by std::terminate


if __name__ == "__main__":
    main()
