# SPDX-License-Identifier: BSD-3-Clause
"""What a network of Python computes, for expect_pythons() of model_case.h."""
import copy
import os
import sys

import torch


def randomize(net):
    """Also what is constant after the start, so that a wrong use of it shows."""
    with torch.no_grad():
        for name, tensor in net.state_dict().items():
            if name.endswith("running_var"):
                tensor.uniform_(0.5, 1.5)
            elif tensor.is_floating_point():
                tensor.add_(torch.randn_like(tensor), alpha=0.05)


def record(net, make_input, forward):
    torch.manual_seed(1)
    randomize(net)
    result = {"state": copy.deepcopy(net.state_dict()), "input": make_input()}
    for mode in ("train", "eval"):
        net.train(mode == "train")
        net.zero_grad()
        torch.manual_seed(2)
        outputs = forward(net, result["input"])
        sum(each.square().mean() for each in outputs).backward()
        result[mode] = {"output": outputs[0], "gradients": {name: each.grad for name, each in net.named_parameters()}}
    result["buffers"] = {name: tensor for name, tensor in net.named_buffers() if name in result["state"]}
    return result


def write(folder, name, make, make_input, forward, further=lambda net, tokens: {}):
    """Loads <name>.cpp.pt, the state dict that the other side wrote. Writes <name>.pt: the state dict after
    manual_seed(0), other weights, an input, and with these weights the outputs and gradients in both modes.
    Writes <name>.weights.pt: the other weights alone, as Python programs save them."""
    torch.manual_seed(0)
    net = make()
    result = {"init": copy.deepcopy(net.state_dict())}
    net.load_state_dict(torch.load(os.path.join(folder, f"{name}.cpp.pt"), weights_only=True))
    result |= record(net, make_input, forward)
    torch.save(result["state"], os.path.join(folder, f"{name}.weights.pt"))
    torch.save(result | further(net, result["input"]), os.path.join(folder, f"{name}.pt"))


def arguments():
    torch.set_num_threads(1)
    return sys.argv[1], sys.argv[2:]
