# SPDX-License-Identifier: BSD-3-Clause
"""Python's StepLR: step_lr.py <cases.pt> <out.pt> <steps before> <until> <states to continue from or ->

The cases: a list of {optimizer, rates, schedulers, changes}: the rate of each parameter group, [step_size, gamma] of
each scheduler, and rates that are set by hand before a step. For each the rates after every step go to <out.pt>, and
the states."""
import sys

import torch


def groups_of(case):
    return [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": rate} for rate in case["rates"]]


def run(case, before, until, state):
    optimizer = getattr(torch.optim, case["optimizer"])(groups_of(case), lr=0.1)
    schedulers = [torch.optim.lr_scheduler.StepLR(optimizer, *arguments) for arguments in case["schedulers"]]
    if state is not None:
        optimizer.load_state_dict(state["optimizer"])
        for scheduler, saved in zip(schedulers, state["schedulers"], strict=True):
            scheduler.load_state_dict(saved)
    rates = []
    for step in range(before, until):
        for group, rate in zip(optimizer.param_groups, case["changes"].get(step, [])):
            group["lr"] = rate
        optimizer.step(lambda: torch.zeros(()))
        for scheduler in schedulers:
            scheduler.step()
            rates.append(list(scheduler.get_last_lr()))
    return {"rates": rates, "optimizer": optimizer.state_dict(), "schedulers": [s.state_dict() for s in schedulers]}


cases, out, before, until, source = sys.argv[1:]
cases = torch.load(cases, weights_only=True)
states = [None] * len(cases) if source == "-" else torch.load(source, weights_only=True)
torch.save([run(case, int(before), int(until), state) for case, state in zip(cases, states, strict=True)], out)
