# SPDX-License-Identifier: BSD-3-Clause
"""The rank of each parameter in PyTorch's ZeroRedundancyOptimizer: zero_partition.py <case>..., where "3 4,4/10,1" has
three ranks, and two groups of two parameters with so many elements."""
import sys

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.testing._internal.distributed.fake_pg import FakeStore

for case in sys.argv[1:]:
    world_size, text = case.split()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=int(world_size))
    groups = [[torch.zeros(int(count)) for count in group.split(",")] for group in text.split("/")]
    first, *later = [{"params": group} for group in groups]
    optimizer = ZeroRedundancyOptimizer([first], torch.optim.SGD, lr=0.1)
    for group in later:
        optimizer.add_param_group(group)
    print(" ".join(str(optimizer._param_to_rank[parameter]) for group in groups for parameter in group))
    dist.destroy_process_group()
