# SPDX-License-Identifier: BSD-3-Clause
"""pipelining_training_test.cpp in Python: pipelining_training.py <folder> <world size>, like ddp_training.py."""
import logging
import sys
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining.schedules import PipelineScheduleSingle, get_schedule_class
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

from ddp_training import run_everywhere

WIDTH, BATCH, MICROBATCHES = 12, 16, 8


def make_stage(index):
    torch.manual_seed(30 + index)
    return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.Tanh(), nn.LayerNorm(2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH))


def shard(module, mesh):
    fully_shard(module[0], mesh=mesh, reshard_after_forward=False)
    fully_shard(module, mesh=mesh, reshard_after_forward=False)


def local_part(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def run_case(case):
    sharded = case["sharded"] == "1"
    mesh = init_device_mesh("cpu", (2, 2) if sharded else (1, dist.get_world_size()), mesh_dim_names=("dp", "pp"))
    group, replica, replicas = mesh["pp"].get_group(), mesh.get_local_rank("dp"), mesh["dp"].size()
    rank, size, local = group.rank(), group.size(), int(case["stages"])
    total = size * local
    is_v = case["schedule"] in ("ZBVZeroBubble", "DualPipeV")
    indices = [rank, total - 1 - rank] if is_v else range(rank, total, size)
    modules = {index: make_stage(index) for index in indices}
    if sharded:
        for module in modules.values():
            shard(module, mesh["dp"])
    stages = [PipelineStage(module, index, total, torch.device("cpu"), group=group) for index, module in modules.items()]
    kind = get_schedule_class(case["schedule"])
    single = issubclass(kind, PipelineScheduleSingle)
    schedule = kind(stages[0] if single else stages, MICROBATCHES // replicas, loss_fn=F.mse_loss)
    records = []
    for step in range(2):
        torch.manual_seed(step)
        x, target = (torch.randn(BATCH, WIDTH).chunk(replicas)[replica] for _ in range(2))
        losses = []
        for module in modules.values():
            module.zero_grad()
        output = schedule.step(*([x] if 0 in modules else []), target=target, losses=losses)
        if total - 1 in modules:
            records += [("output", output)] + ([] if sharded else [("losses", torch.stack(losses))])
        for index in sorted(modules):
            for name, p in modules[index].named_parameters():
                records.append((f"{index}.{name}", local_part(p.grad).clone()))
                if sharded:
                    with torch.no_grad():
                        p.sub_(p.grad, alpha=0.1)
    return records


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    run_everywhere(sys.argv[1], int(sys.argv[2]), run_case)
