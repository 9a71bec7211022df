# SPDX-License-Identifier: BSD-3-Clause
"""The Python twin of benchmarks/optim_step.cpp: the same parameters, gradients and steps; fused, foreach (Python's choice
where CUDA is, and to be asked for on the CPU) and one parameter after another."""
import argparse
import json
import statistics
import time

import torch

WAYS = {"": {"foreach": False, "fused": False}, " foreach": {"foreach": True}, " fused": {"fused": True}}


def shapes_of(net):
    if net == "gpt":
        layer = [(256,), (256,), (768, 256), (768,), (256, 256), (256,),
                 (256,), (256,), (1024, 256), (1024,), (256, 1024), (256,)]
        return [(8192, 256), (256, 256), (256,), (256,)] + 8 * layer
    return 4 * [(1024, 1024), (1024,)] if net == "mlp" else 400 * [(64,)]


def make_parameters(net):
    torch.manual_seed(0)
    parameters = []
    for shape in shapes_of(net):
        parameters.append(torch.randn(shape, requires_grad=True))
        parameters[-1].grad = torch.randn(shape)
    return parameters


def make_optimizers(net):
    made = {}
    for name, more in WAYS.items():
        made["adamw" + name] = torch.optim.AdamW(make_parameters(net), **more)
        made["adam" + name] = torch.optim.Adam(make_parameters(net), **more)
        made["sgd" + name] = torch.optim.SGD(make_parameters(net), 1e-3, momentum=0.9, **more)
    return made


def seconds_a_step(optimizer, steps):
    begin = time.perf_counter()
    for _ in range(steps):
        optimizer.step()
    return (time.perf_counter() - begin) / steps


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--net", choices=["gpt", "mlp", "small"], default="gpt")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=10)
    flags = parser.parse_args()
    torch.set_num_threads(1)
    optimizers = make_optimizers(flags.net)
    seconds = {name: [] for name in optimizers}
    for number in range(-1, flags.rounds):
        for name, optimizer in optimizers.items():
            took = seconds_a_step(optimizer, flags.steps)
            if number >= 0:
                seconds[name].append(took)
    print(json.dumps({name: statistics.median(all_of) for name, all_of in seconds.items()}), flush=True)


if __name__ == "__main__":
    main()
