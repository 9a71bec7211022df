# SPDX-License-Identifier: BSD-3-Clause
"""Python's error messages for a state dict that does not match: state_dict_errors.py <file>; saves the dict there."""
import sys

import torch
from torch import nn

net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
state = net.state_dict()
state["extra.weight"] = state.pop("0.bias")
state["zzz"] = torch.zeros(1)
state["0.0.extra"] = torch.zeros(1)
state["2.other"] = torch.zeros(1)
state["2.bias"] = "text"
state["2.weight"] = torch.zeros(2, 3)
del state["1.running_var"]
torch.save(state, sys.argv[1])
try:
    net.load_state_dict(state)
except RuntimeError as error:
    print(error)
try:
    net.load_state_dict(state, strict=False)
except RuntimeError as error:
    print("--")
    print(error)
