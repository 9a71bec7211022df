# SPDX-License-Identifier: BSD-3-Clause
"""A rank of a DDP run over shm, started by the wheel's launcher."""

import torch
import torch.distributed as dist

import lockstep_checkpoint  # noqa: F401
import lockstep_torch  # noqa: F401

dist.init_process_group("shm")
torch.manual_seed(dist.get_rank())
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    optimizer.zero_grad()
    model(torch.rand(8, 4)).square().mean().backward()
    optimizer.step()
weights = [torch.empty(1, 4) for _ in range(dist.get_world_size())]
dist.all_gather(weights, model.module.weight.detach())
assert torch.equal(weights[0], weights[1]), weights
dist.destroy_process_group()
