# SPDX-License-Identifier: BSD-3-Clause
"""Optimizers with fused=True: fused_optimizers.py first|second <folder>

first:  writes, for each case, <case>.init.pt, .half.pt after half the steps and .whole.pt after all, and for those of
        PLAIN the .plain_half.pt of an optimizer without fused=True, with .plain_whole.pt of a fused one after it.
second: continues from <case>.cpp_half.pt, which the other side wrote, and writes <case>.back.pt.
"""
import os
import sys

import torch

HALF, WHOLE = 12, 24
DTYPES = {"float": torch.float32, "double": torch.float64, "bfloat16": torch.bfloat16, "half": torch.float16}
OPTIMIZERS = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
# For each case: the optimizer, the type of the parameters, arguments, and what else there is to it.
CASES = {
    "adam": ("adam", "float", {"lr": 0.01}, ""),
    "adam_all": ("adam", "float", {"lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1, "amsgrad": True}, ""),
    "adam_maximize": ("adam", "double", {"lr": 0.01, "maximize": True, "weight_decay": 0.1}, ""),
    "adam_bf16": ("adam", "bfloat16", {"lr": 0.01, "amsgrad": True}, ""),
    "adamw": ("adamw", "float", {}, ""),
    "adamw_all": ("adamw", "float", {"lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1, "amsgrad": True}, ""),
    "adamw_double": ("adamw", "double", {"lr": 0.01}, ""),
    "adamw_bf16": ("adamw", "bfloat16", {"lr": 0.01}, ""),
    "adamw_half": ("adamw", "half", {"lr": 0.01, "maximize": True}, ""),
    "adamw_tensor": ("adamw", "float", {"lr": 0.01}, "tensor"),
    "adamw_scaled": ("adamw", "float", {"lr": 0.01, "amsgrad": True}, "scaled"),
    "sgd": ("sgd", "float", {"lr": 0.1, "weight_decay": 0.01}, ""),
    "sgd_momentum": ("sgd", "float", {"lr": 0.1, "momentum": 0.9, "dampening": 0.5, "weight_decay": 0.01}, ""),
    "sgd_nesterov": ("sgd", "double", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "maximize": True}, ""),
    # Without momentum: with it LibTorch's kernel of the CPU leaves other bits in two runs of the same Python.
    "sgd_bf16": ("sgd", "bfloat16", {"lr": 0.1, "weight_decay": 0.01}, ""),
    "sgd_tensor": ("sgd", "float", {"lr": 0.1, "momentum": 0.9}, "tensor"),
    "sgd_scaled": ("sgd", "float", {"lr": 0.1, "momentum": 0.9}, "scaled"),
}
PLAIN = ["adam_all", "adamw_all", "sgd_momentum", "sgd"]


def make_parameters(case):
    torch.manual_seed(1)
    tensors = [torch.randn(16, 10), torch.randn(16), torch.randn(8, 3, 3, 3).to(memory_format=torch.channels_last),
               torch.randn(7, 5).t(), torch.randn(()), torch.randn(0, 4), torch.randn(300, 41), torch.randn(6, 1, 2)]
    return [torch.nn.Parameter(tensor.to(DTYPES[CASES[case][1]])) for tensor in tensors]


def make_optimizer(case, parameters, fused=True):
    """Two groups; the second one with half the rate of the first and its own weight decay."""
    kind, _, arguments, what = CASES[case]
    arguments = dict(arguments)
    if what == "tensor":
        arguments["lr"] = torch.tensor(arguments["lr"])
    optimizer = OPTIMIZERS[kind]([{"params": parameters[:5]}, {"params": parameters[5:], "weight_decay": 0.25}],
                                 **arguments, fused=fused)
    if what == "tensor":
        optimizer.param_groups[1]["lr"] = arguments["lr"].clone()
    return optimizer


def set_rates(case, optimizer, number):
    """As a scheduler does; exact, so that both languages get the same numbers."""
    lr = CASES[case][2].get("lr", 1e-3) * 0.5 ** (number // 5)
    for group, value in zip(optimizer.param_groups, [lr, lr / 2]):
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(value)
        else:
            group["lr"] = value


def set_gradients(parameters, number):
    torch.manual_seed(100 + number)
    for index, parameter in enumerate(parameters):
        drawn = torch.randn(parameter.shape)
        late = index in (5, 6, 7) and number < 4
        parameter.grad = None if late or (index == 3 and number % 3 == 2) else torch.empty_like(parameter).copy_(drawn)


def step(case, parameters, optimizer, number):
    set_rates(case, optimizer, number)
    set_gradients(parameters, number)
    if CASES[case][3] == "scaled":
        optimizer.grad_scale = torch.tensor(4.0)
        optimizer.found_inf = torch.tensor(1.0 if number % 4 == 3 else 0.0)
    optimizer.step()


def train(case, parameters, optimizer, first, last):
    for number in range(first, last):
        step(case, parameters, optimizer, number)


def save(parameters, optimizer, folder, name):
    torch.save({"parameters": [p.detach() for p in parameters], "gradients": [p.grad for p in parameters],
                "optimizer": optimizer.state_dict()}, os.path.join(folder, f"{name}.pt"))


def first(case, folder):
    parameters = make_parameters(case)
    optimizer = make_optimizer(case, parameters)
    save(parameters, optimizer, folder, f"{case}.init")
    train(case, parameters, optimizer, 0, HALF)
    save(parameters, optimizer, folder, f"{case}.half")
    train(case, parameters, optimizer, HALF, WHOLE)
    save(parameters, optimizer, folder, f"{case}.whole")


def from_plain(case, folder):
    parameters = make_parameters(case)
    optimizer = make_optimizer(case, parameters, fused=False)
    train(case, parameters, optimizer, 0, HALF)
    save(parameters, optimizer, folder, f"{case}.plain_half")
    fused = make_optimizer(case, parameters)
    fused.load_state_dict(optimizer.state_dict())
    for group in fused.param_groups:  # which the other one's state dict has switched off
        group["fused"] = True
    train(case, parameters, fused, HALF, WHOLE)
    save(parameters, fused, folder, f"{case}.plain_whole")


def second(case, folder):
    half = torch.load(os.path.join(folder, f"{case}.cpp_half.pt"), weights_only=True)
    parameters = make_parameters(case)
    with torch.no_grad():
        for parameter, value in zip(parameters, half["parameters"], strict=True):
            parameter.copy_(value)
    optimizer = make_optimizer(case, parameters)
    keys = [set(group) for group in optimizer.param_groups]
    optimizer.load_state_dict(half["optimizer"])
    assert [set(group) for group in optimizer.param_groups] == keys, (case, optimizer.param_groups, keys)
    train(case, parameters, optimizer, HALF, WHOLE)
    save(parameters, optimizer, folder, f"{case}.back")


def main():
    torch.set_num_threads(1)
    what, folder = sys.argv[1:]
    for case in CASES:
        if what == "first":
            first(case, folder)
            if case in PLAIN:
                from_plain(case, folder)
        else:
            second(case, folder)


if __name__ == "__main__":
    main()
