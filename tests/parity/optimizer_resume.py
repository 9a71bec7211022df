# SPDX-License-Identifier: BSD-3-Clause
"""Training with each optimizer that C++ has too: optimizer_resume.py first|second <folder>

first:  writes, for each, <kind>.init.pt, .half.pt after half the steps and .whole.pt after all.
second: continues from <kind>.cpp_half.pt, which the other side wrote, and writes <kind>.back.pt.
"""
import os
import sys

import torch
from torch import nn

HALF, WHOLE = 10, 20
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, weight_decay=1e-3),
    "sgd_nesterov": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, nesterov=True),
    "sgd_plain": lambda p: torch.optim.SGD(p, 0.05),
    "adam": lambda p: torch.optim.Adam(p, 1e-2, weight_decay=1e-3),
    "adam_amsgrad": lambda p: torch.optim.Adam(p, 1e-2, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, 1e-2, weight_decay=1e-2),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 1e-3),
    "rmsprop_centered": lambda p: torch.optim.RMSprop(p, 1e-3, centered=True, momentum=0.5),
    "adagrad": lambda p: torch.optim.Adagrad(p, 1e-2, lr_decay=1e-3, initial_accumulator_value=0.1),
    "lbfgs": lambda p: torch.optim.LBFGS(p, 0.1, max_iter=4, history_size=5),
    "lbfgs_wolfe": lambda p: torch.optim.LBFGS(p, 1, max_iter=4, line_search_fn="strong_wolfe"),
}


def make(kind):
    net = nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 3))
    # Two groups, the second with a learning rate of its own; LBFGS takes one.
    if kind.startswith("lbfgs"):
        return net, OPTIMIZERS[kind](net.parameters())
    optimizer = OPTIMIZERS[kind]([{"params": net[0].parameters()}, {"params": net[2].parameters()}])
    optimizer.param_groups[1]["lr"] *= 0.5
    return net, optimizer


def train(net, optimizer, first, last):
    for step in range(first, last):
        torch.manual_seed(100 + step)
        inputs, target = torch.randn(8, 10), torch.randn(8, 3)

        def closure():
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(net(inputs), target)
            loss.backward()
            return loss

        optimizer.step(closure)


def save(net, optimizer, folder, kind, name):
    torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict()}, os.path.join(folder, f"{kind}.{name}.pt"))


def main():
    torch.set_num_threads(1)
    what, folder = sys.argv[1:]
    for kind in OPTIMIZERS:
        torch.manual_seed(1)
        net, optimizer = make(kind)
        if what == "first":
            save(net, optimizer, folder, kind, "init")
            train(net, optimizer, 0, HALF)
            save(net, optimizer, folder, kind, "half")
            train(net, optimizer, HALF, WHOLE)
            save(net, optimizer, folder, kind, "whole")
        else:
            halfway = torch.load(os.path.join(folder, f"{kind}.cpp_half.pt"), weights_only=True)
            net.load_state_dict(halfway["model"])
            keys = [set(group) | ({"maximize"} if kind.startswith("lbfgs") else set()) for group in optimizer.param_groups]
            optimizer.load_state_dict(halfway["optimizer"])
            assert [set(group) for group in optimizer.param_groups] == keys, (kind, optimizer.param_groups, keys)
            train(net, optimizer, HALF, WHOLE)
            save(net, optimizer, folder, kind, "back")


if __name__ == "__main__":
    main()
