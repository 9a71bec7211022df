# SPDX-License-Identifier: BSD-3-Clause
"""What tests of the backends in Python ranks share: how ranks start and join, and what they check."""

import contextlib
import ctypes
import itertools
import multiprocessing
import signal
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

RANKS = 2


_joins = itertools.count()


def join(rank, backend, port, ranks=RANKS):
    """`port`: of the store of run(). Each group has keys of its own in it."""
    import lockstep_torch  # noqa: F401

    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    dist.init_process_group(
        backend, store=dist.PrefixStore(f"group {next(_joins)}", store), rank=rank, world_size=ranks, timeout=timedelta(seconds=60))


def check_sum(group=None):
    tensor = torch.ones(1000)
    dist.all_reduce(tensor, group=group)
    assert tensor.sum() == 1000 * RANKS, tensor


def check_error(kind, words, action):
    try:
        action()
    except kind as error:
        assert type(error) is kind and words in str(error), repr(error)
    else:
        raise AssertionError(f"no {kind.__name__}")


def is_shared(tensor):
    """Whether other processes can map the tensor's memory."""
    with open("/proc/self/maps", encoding="utf-8") as mappings:
        for line in mappings:
            begin, end = (int(place, 16) for place in line.split()[0].split("-"))
            if begin <= tensor.data_ptr() < end:
                return line.split()[1].endswith("s")
    raise AssertionError("no mapping")


def train(group):
    model = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Linear(8, 2), process_group=group, gradient_as_bucket_view=True)
    for _ in range(3):
        model(torch.rand(4, 8)).sum().backward()
    assert is_shared(model.module.weight.grad), "the buckets are not in the backend's memory"
    gradients = [torch.empty(2, 8) for _ in range(group.size())]
    dist.all_gather(gradients, model.module.weight.grad, group=group)
    assert all(torch.equal(gradients[0], gradient) for gradient in gradients), gradients


def losses_of(group, view):
    torch.manual_seed(group.rank())  # DistributedDataParallel broadcasts rank 0's parameters
    net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.BatchNorm1d(64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
    ddp = torch.nn.parallel.DistributedDataParallel(
        net, process_group=group, bucket_cap_mb=0.01, gradient_as_bucket_view=view)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(ddp(torch.rand(16, 32)), torch.randint(4, (16,)))
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def check_losses(group, tolerance):
    """Training over the group is training over gloo."""
    gloo = dist.new_group(backend="gloo")
    for view in (False, True):
        torch.testing.assert_close(losses_of(group, view), losses_of(gloo, view), rtol=tolerance, atol=0)
    dist.destroy_process_group(gloo)


def serve_store(port):
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    port.send(store.port)
    signal.pause()


@contextlib.contextmanager
def store_process():
    """The port of a store. A process serves it: this one stays without threads, so that ranks can be forks of it."""
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("fork").Process(target=serve_store, args=(theirs,), daemon=True)
    server.start()
    try:
        yield ours.recv()
    finally:
        server.kill()
        server.join()


def rank_process(rank, function, *arguments):
    function(rank, *arguments)
    ctypes.pythonapi.Py_Exit(0)  # as a program ends: the forks of multiprocessing skip the teardown of interpreter and libraries


def run(function, ranks, *arguments, limit):
    """Runs function(rank, port of a store, *arguments) in forks of this process, which has imported what takes seconds."""
    with store_process() as port:
        context = mp.start_processes(rank_process, (function, port, *arguments), nprocs=ranks, join=False, start_method="fork")
        end = time.monotonic() + limit
        while not context.join(1):
            assert time.monotonic() < end, "a rank does not end"
