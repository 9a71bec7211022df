# SPDX-License-Identifier: BSD-3-Clause
"""AveragedModel and update_bn: swa_utils.py <out.pt>

Writes the weights of a model in each of some steps and, for several options, the state dict of the average after each; then
the statistics that update_bn computes; and an average that C++ is to continue, with the one that Python continues."""
import copy
import sys

import torch
from torch import nn
from torch.optim import swa_utils

STEPS = 5
OPTIONS = {
    "swa": {},
    "swa_fn": {"avg_fn": swa_utils.get_swa_avg_fn()},
    "swa_multi": {"multi_avg_fn": swa_utils.get_swa_multi_avg_fn()},
    "ema": {"avg_fn": swa_utils.get_ema_avg_fn(0.9)},
    "ema_multi": {"multi_avg_fn": swa_utils.get_ema_multi_avg_fn(0.7)},
    "ema_buffers": {"multi_avg_fn": swa_utils.get_ema_multi_avg_fn(0.9), "use_buffers": True},
    "swa_buffers": {"use_buffers": True},
}


def net():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, momentum=0.3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 5), nn.BatchNorm1d(5))


torch.set_num_threads(1)
torch.manual_seed(1)
model = net()
averages = {name: swa_utils.AveragedModel(model, **options) for name, options in OPTIONS.items()}
weights, states = [], {name: [] for name in averages}
for _ in range(STEPS):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter))
    model(torch.randn(8, 3, 4, 4))  # changes the statistics
    weights.append(copy.deepcopy(model.state_dict()))
    for name, average in averages.items():
        average.update_parameters(model)
        states[name].append(copy.deepcopy(average.state_dict()))
batches = [torch.randn(6, 3, 4, 4) for _ in range(4)]
bn = averages["swa"].eval()
swa_utils.update_bn([(batch, None) for batch in batches], bn)
result = {"weights": weights, "states": states, "batches": batches, "bn": bn.state_dict(), "training": bn.training}
torch.save(result, sys.argv[1])
