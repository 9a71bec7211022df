# SPDX-License-Identifier: BSD-3-Clause
"""Steps of Python's DistributedDataParallel over shm, over gloo and without a reduction, in turn in the same ranks, the
reduction of 25 MiB alone, and what a callback adds to a call."""
import argparse
import json
import pathlib
import statistics
import sys

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
from torch.nn.parallel import DistributedDataParallel

import lockstep_torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from ddp_step import NETS, make_step, models, seconds_of  # noqa: E402

ALL_NETS = {"mnist": (models.MnistNet, lambda: torch.randn(32, 1, 28, 28)), **NETS}
BUCKET = 25 * 1024 * 1024 // 4


def make_steps(net, groups, view):
    make_net, draw = ALL_NETS[net]
    torch.manual_seed(1 + dist.get_rank())
    data = draw()

    def make_ddp(group):
        torch.manual_seed(0)
        model = make_net()
        for module in model.modules():
            if isinstance(module, (torch.nn.Dropout, torch.nn.Dropout2d)):
                module.p = 0.0  # the sides would draw different numbers
        return DistributedDataParallel(model, process_group=group, gradient_as_bucket_view=view)

    unreduced = make_ddp(groups["shm"])  # a backend that takes no time
    unreduced.register_comm_hook(None, noop_hook)
    return {**{name: make_step(make_ddp(group), data) for name, group in groups.items()},
            "unreduced": make_step(unreduced, data)}


def make_reductions(groups):
    """The reduction of one full bucket, in memory that the backend allocates as DDP's, and what rewrites the buckets."""
    reductions, buckets = {}, []
    for name, group in groups.items():
        backend = group._get_backend(torch.device("cpu"))
        cpu = torch.device("cpu")
        own = backend.supports_tensor_alloc(cpu)
        bucket = backend.allocate_tensor(BUCKET, dtype=torch.float, device=cpu) if own else torch.empty(BUCKET)
        buckets.append(bucket)

        def reduce(bucket=bucket, group=group):
            dist.all_reduce(bucket, group=group)
            return 0

        reductions[name] = reduce

    def rewrite():
        for bucket in buckets:
            bucket.fill_(1.0)

    return reductions, rewrite


def make_callbacks(group):
    """A small call that is waited for directly, and one whose future calls a function first, as DDP's hooks do."""
    tensor = torch.zeros(1024)

    def direct():
        dist.all_reduce(tensor, group=group, async_op=True).wait()
        return 0

    def callback():
        dist.all_reduce(tensor, group=group, async_op=True).get_future().then(lambda done: done.value()).wait()
        return 0

    return {"direct": direct, "callback": callback}


def measure(actions, count, barrier, prepare, block=1):
    """{name: (median seconds, results)}; each side goes first in every other turn. The ranks start together. A turn is a
    block of calls, of which the first is not counted if there are more: a core that slept in gloo's call is slow at first."""
    times = {name: [] for name in actions}
    results = {name: [] for name in actions}
    for i in range(-3, count):
        for name in list(actions)[::-1 if i % 2 else 1]:
            for k in range(block):
                prepare()
                barrier()
                seconds, result = seconds_of(actions[name])
                results[name].append(result)
                if i >= 0 and k >= min(1, block - 1):
                    times[name].append(seconds)
    return {name: (statistics.median(times[name]), results[name]) for name in actions}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--net", choices=[*ALL_NETS, "none", "callbacks"], default="resnet18")
    parser.add_argument("--view", action="store_true", help="gradient_as_bucket_view")
    parser.add_argument("--caching", action="store_true", help="the caching CPU allocator, for both backends")
    parser.add_argument("--steps", type=int, default=20)
    flags = parser.parse_args()
    if flags.caching:
        lockstep_torch.enable_caching_cpu_allocator()
    dist.init_process_group("gloo")
    groups = {"gloo": dist.group.WORLD, "shm": dist.new_group(backend="shm")}
    def prepare():
        pass

    block = 1
    if flags.net == "none":
        actions, prepare = make_reductions(groups)
        block = 5
    elif flags.net == "callbacks":
        actions = make_callbacks(groups["shm"])
    else:
        actions = make_steps(flags.net, groups, flags.view)
    measured = measure(actions, flags.steps, lambda: dist.barrier(group=groups["shm"]), prepare, block)
    if dist.get_rank() == 0:
        print(json.dumps({"seconds": {name: seconds for name, (seconds, _) in measured.items()},
                          "losses": {name: losses for name, (_, losses) in measured.items()}}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
