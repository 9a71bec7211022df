# SPDX-License-Identifier: BSD-3-Clause
"""Where PyTorch's DDP raises: ddp_errors.py <folder> runs each case on two ranks over Gloo, and rank 0 writes a line
"<case> <the last operation that was started, or 'nothing' without an error>" for each to <folder>/points."""
import datetime
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import models


class Case:
    """Records the operation that starts."""

    def __init__(self):
        self.point = "nothing"

    def wrap(self, net, **options):
        self.point = "construction"
        self.ddp = DistributedDataParallel(net, **options)

    def step(self, number, *arguments, twice=False):
        self.point = f"forward {number}"
        output = self.ddp(*arguments)
        output = output[0] if isinstance(output, tuple) else output
        self.point = f"backward {number}"
        output.sum().backward(retain_graph=twice)
        if twice:
            self.point = f"backward {number} again"
            output.sum().backward()


X = torch.ones(2, 1, 28, 28)


def frozen_module(case):
    net = nn.Linear(2, 2)
    for parameter in net.parameters():
        parameter.requires_grad_(False)
    case.wrap(net)


def module_without_parameters(case):
    case.wrap(nn.ReLU())


def delay_without_trigger(case):
    net = nn.Linear(2, 2)
    case.wrap(net, delay_all_reduce_named_params=[("weight", net.weight)])


def unused_parameter(case):
    case.wrap(models.Experts(False))
    for number in range(1, 4):
        case.step(number, X, 0)


def unused_parameter_found(case):
    case.wrap(models.Experts(True), find_unused_parameters=True)
    for number in range(1, 4):
        case.step(number, X, number)


def static_graph_that_changes(case):
    case.wrap(models.Experts(False), static_graph=True)
    for number, which in enumerate([0, 0, 1, 1], start=1):
        case.step(number, X, which)


def reentrant_checkpoint_twice(case):
    case.wrap(models.Reuse("reentrant"))
    case.step(1, X, 0)


def reentrant_checkpoint_twice_static(case):
    case.wrap(models.Reuse("reentrant"), static_graph=True)
    for number in range(1, 4):
        case.step(number, X, 0)


def backward_twice(case):
    case.wrap(models.Reuse("none"))
    for number in range(1, 3):
        case.step(number, X, 0, twice=True)


def hook_twice(case):
    case.wrap(nn.Linear(2, 2))
    case.point = "registration 1"
    case.ddp.register_comm_hook(None, default_hooks.allreduce_hook)
    case.point = "registration 2"
    case.ddp.register_comm_hook(None, default_hooks.allreduce_hook)


def powersgd_too_early(case):
    case.point = "construction of the hook"
    powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=1)


CASES = [frozen_module, module_without_parameters, delay_without_trigger, unused_parameter,
         unused_parameter_found, static_graph_that_changes, reentrant_checkpoint_twice,
         reentrant_checkpoint_twice_static, backward_twice, hook_twice, powersgd_too_early]


def point_of(run):
    case = Case()
    try:
        run(case)
    except (RuntimeError, ValueError, IndexError, StopIteration):
        return case.point
    return "nothing"


def run_rank(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2,
                            timeout=datetime.timedelta(seconds=60))
    points = [f"{run.__name__} {point_of(run)}\n" for run in CASES]
    if rank == 0:
        with open(f"{folder}/points", "w") as file:
            file.writelines(points)
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.start_processes(run_rank, (sys.argv[1],), nprocs=2, start_method="fork")
