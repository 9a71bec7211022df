# SPDX-License-Identifier: BSD-3-Clause
"""torch.profiler's operators: operator_counts.py <wait> <warmup> <active>; prints "<calls> <name>" lines."""
import sys

import torch
from torch.profiler import ProfilerActivity, profile, schedule

wait, warmup, active = map(int, sys.argv[1:])
net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
inputs, targets = torch.ones(8, 16), torch.zeros(8, dtype=torch.long)
steps = schedule(wait=wait, warmup=warmup, active=active, repeat=1)
with profile(activities=[ProfilerActivity.CPU], schedule=steps) as profiler:
    for _ in range(wait + warmup + active + 1):
        net.zero_grad()
        torch.nn.functional.cross_entropy(net(inputs), targets).backward()
        profiler.step()
for operator in profiler.key_averages():
    print("operator", operator.count, operator.key)
