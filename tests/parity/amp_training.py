# SPDX-License-Identifier: BSD-3-Clause
"""Training in mixed precision: amp_training.py first|second <folder>

first:  writes, for each case, <case>.init.pt, .half.pt after half the steps and .whole.pt after all.
second: continues from <case>.cpp_half.pt, which the other side wrote, and writes <case>.back.pt.
"""
import os
import sys

import torch
from torch import nn

HALF, WHOLE = 18, 36
INF_AT = {3, 4, 11, 20, 29}
# For each case: the dtype of autocast, whether gradients are scaled, and what else is done.
CASES = {
    "bf16": (torch.bfloat16, False, ""),
    "bf16_scaled": (torch.bfloat16, True, ""),
    "fp16": (torch.float16, True, ""),
    "channels_last": (torch.bfloat16, False, "channels_last"),
    "clip": (torch.float16, True, "clip"),
    "two_optimizers": (torch.float16, True, "two"),
    "new_scale": (torch.float16, True, "new_scale"),
    "fused_adamw": (torch.float16, True, "fused_adamw"),
    "fused_sgd": (torch.float16, True, "fused_sgd"),
    "fused_clip": (torch.float16, True, "fused_adamw clip"),
    "disabled": (torch.bfloat16, None, ""),
}


def make(case):
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 16), nn.Tanh(), nn.Linear(16, 10))
    what = CASES[case][2]
    if what.startswith("fused_adamw"):
        optimizers = [torch.optim.AdamW(net.parameters(), 0.01, fused=True)]
    elif what == "fused_sgd":
        optimizers = [torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, fused=True)]
    elif what == "two":
        optimizers = [torch.optim.SGD(net[0].parameters(), 0.05, momentum=0.9),
                      torch.optim.RMSprop([*net[3].parameters(), *net[5].parameters()], 1e-3)]
    else:
        optimizers = [torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)]
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3, enabled=CASES[case][1] is True)
    if what == "channels_last":
        net.to(memory_format=torch.channels_last)
    return net, optimizers, scaler


def step(case, number, net, optimizers, scaler):
    dtype, scaled, what = CASES[case]
    torch.manual_seed(100 + number)
    images, labels = torch.randn(4, 3, 8, 8), torch.randint(0, 10, (4,))
    if what == "channels_last":
        images = images.to(memory_format=torch.channels_last)
    for optimizer in optimizers:
        optimizer.zero_grad()
    with torch.autocast("cpu", dtype=dtype):
        loss = nn.functional.cross_entropy(net(images), labels)
    scaler.scale(loss).backward()
    if scaled and number in INF_AT:
        net[0].weight.grad[0, 0, 0, 0] = float("inf") if number % 2 else float("nan")
    if what.endswith("clip"):
        scaler.unscale_(optimizers[0])
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
    for optimizer in optimizers:
        scaler.step(optimizer)
    if what == "new_scale" and number % 10 == 9:
        scaler.update(2.0 ** (number % 7 + 3))
    else:
        scaler.update()
    return [loss.item(), scaler.get_scale()]


def train(case, side, first, last):
    return torch.tensor([step(case, number, *side) for number in range(first, last)], dtype=torch.float64)


def state_of(side, record):
    net, optimizers, scaler = side
    return {"model": net.state_dict(), "optimizers": [o.state_dict() for o in optimizers],
            "scaler": scaler.state_dict(), "record": record}


def save(side, record, folder, case, name):
    torch.save(state_of(side, record), os.path.join(folder, f"{case}.{name}.pt"))


def main():
    torch.set_num_threads(1)
    what, folder = sys.argv[1:]
    for case in CASES:
        torch.manual_seed(1)
        side = make(case)
        if what == "first":
            save(side, torch.zeros(0), folder, case, "init")
            record = train(case, side, 0, HALF)
            save(side, record, folder, case, "half")
            save(side, torch.cat([record, train(case, side, HALF, WHOLE)]), folder, case, "whole")
        else:
            half = torch.load(os.path.join(folder, f"{case}.cpp_half.pt"), weights_only=True)
            side[0].load_state_dict(half["model"])
            for optimizer, state in zip(side[1], half["optimizers"], strict=True):
                optimizer.load_state_dict(state)
            side[2].load_state_dict(half["scaler"])
            save(side, torch.cat([half["record"], train(case, side, HALF, WHOLE)]), folder, case, "back")


if __name__ == "__main__":
    main()
