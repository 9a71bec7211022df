# SPDX-License-Identifier: BSD-3-Clause
"""Python's ReduceLROnPlateau: plateau.py <cases.pt> <out.pt> <steps before> <state to continue from or ->

The cases: a list of {options, metrics}; for each the rates after every step go to <out.pt>, and the state dict."""
import sys

import torch


def run(case, before, state):
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": rate} for rate in (0.5, 0.25)]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, **case["options"])
    if state is not None:
        scheduler.load_state_dict(state["state"])
        for group, rate in zip(optimizer.param_groups, state["state"]["_last_lr"], strict=True):
            group["lr"] = rate
    rates = []
    for metric in case["metrics"][before:]:
        scheduler.step(metric)
        rates.append(list(scheduler.get_last_lr()))
    return {"rates": rates, "state": scheduler.state_dict()}


cases, out, before, source = sys.argv[1:]
states = [None] * 1000 if source == "-" else torch.load(source, weights_only=True)
torch.save([run(case, int(before), state) for case, state in zip(torch.load(cases, weights_only=True), states, strict=False)], out)
