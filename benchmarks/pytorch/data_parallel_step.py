# SPDX-License-Identifier: BSD-3-Clause
"""The Python twin of benchmarks/data_parallel_step.cpp. torch.nn.parallel.parallel_apply wants an accelerator, so this does
on the CPU what it does: a thread for each replica, one call each, the outputs put together, one backward. Replicas share
the parameters themselves, so nothing has to be copied or added."""
import argparse
import copy
import json
import statistics
import threading
import time

import torch
from ddp_step import NETS, seconds_of

REPLICAS = 2


def replica_of(net):
    """A copy whose parameters are the net's own."""
    memo = {id(parameter): parameter for parameter in net.parameters()}
    return copy.deepcopy(net, memo)


def parallel_apply(replicas, inputs):
    results = [None] * len(replicas)

    def work(i):
        torch.set_num_threads(1)
        results[i] = replicas[i](inputs[i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(replicas))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.set_num_threads(REPLICAS)
    return torch.cat(results)


def make_step(net, call):
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)

    def step():
        optimizer.zero_grad()
        loss = call().pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--net", choices=NETS, default="resnet18")
    parser.add_argument("--steps", type=int, default=20)
    flags = parser.parse_args()
    torch.set_num_threads(REPLICAS)
    make_net, draw = NETS[flags.net]
    data = torch.cat([draw() for _ in range(REPLICAS)])
    alone, net = make_net(), make_net()
    replicas = [replica_of(net) for _ in range(REPLICAS)]
    steps = {"module": make_step(alone, lambda: alone(data)),
             "replicas": make_step(net, lambda: parallel_apply(replicas, data.chunk(REPLICAS)))}
    times = {name: [] for name in steps}
    for i in range(-3, flags.steps):
        for name, step in steps.items():
            seconds, _ = seconds_of(step)
            if i >= 0:
                times[name].append(seconds)
    print(json.dumps({f"{name}_seconds": statistics.median(each) for name, each in times.items()}), flush=True)


if __name__ == "__main__":
    main()
