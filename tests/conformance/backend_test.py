# SPDX-License-Identifier: BSD-3-Clause
"""The backends in ranks of torch.multiprocessing: backend_test.py

LOCKSTEP_FAULT_ROUNDS=200 repeats all of it under load."""

import gc
import importlib
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta
from unittest import mock

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch._C import _distributed_c10d as distributed

from python_ranks import RANKS, check_error, check_losses, check_sum, join, run, train


def in_thread(action):
    thread = threading.Thread(target=action)
    thread.start()
    thread.join()


def check_caching_allocator():
    """Freed memory serves the next tensor, in huge pages."""
    import lockstep_torch

    lockstep_torch.enable_caching_cpu_allocator()
    first, second = torch.empty(32 << 20, dtype=torch.uint8).data_ptr(), torch.empty(32 << 20, dtype=torch.uint8).data_ptr()
    assert first == second and first % (2 << 20) == 0, (first, second)


def check_functional(rank):
    """The functional collectives of DTensor and torch.compile."""
    world = dist.group.WORLD
    assert functional.all_reduce(torch.ones(2), "sum", world).tolist() == [2, 2]
    # The names since PyTorch 2.14, and those before.
    all_gather_single = getattr(functional, "all_gather_single", functional.all_gather_tensor)
    reduce_scatter_single = getattr(functional, "reduce_scatter_single", functional.reduce_scatter_tensor)
    assert all_gather_single(torch.full((1,), float(rank)), 0, world).tolist() == [0, 1]
    assert reduce_scatter_single(torch.arange(2.0), "sum", 0, world).tolist() == [2 * rank]
    assert functional.all_to_all_single(torch.tensor([rank, rank]), None, None, world).tolist() == [0, 1]
    parts = [torch.full((1,), float(rank)), torch.full((1,), rank + 5)]
    joined = functional.all_gather_into_tensor_coalesced(parts, world)
    assert [part.tolist() for part in joined] == [[0, 1], [5, 6]], joined


def check_monitored_barrier(rank):
    dist.monitored_barrier()
    mixed = dist.new_group([0, 1], backend="cpu:shm")
    dist.monitored_barrier(mixed, timeout=timedelta(seconds=60), wait_all_ranks=True)
    gloo = dist.new_group([0, 1], backend="gloo")
    dist.monitored_barrier(gloo)
    late = dist.new_group([0, 1], timeout=timedelta(seconds=3))  # in which the ranks also meet
    if rank == 0:
        check_error(dist.DistBackendError, "Rank 1 failed to pass monitoredBarrier", lambda: dist.monitored_barrier(late))


def check_fork():
    """A child of a rank neither uses nor disturbs the group, and ends."""
    child = os.fork()
    if child == 0:
        try:
            check_error(dist.DistBackendError, "was forked off this rank", check_sum)
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    group = dist.new_group([0, 1])
    child = os.fork()
    if child == 0:
        dist.destroy_process_group(group)
        del group  # the last reference, which ends the backend
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    check_sum(group)


def check_timeout():
    """PyTorch has it from 2.14 on."""
    work = dist.all_reduce(torch.ones(1), async_op=True)
    assert not hasattr(dist.Work, "timeout") or work.timeout == timedelta(seconds=60), work.timeout
    work.wait()


def check_seen_from_outside(rank):
    """`lockstep recorder analyze` names the rank for which others wait, and their call."""
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        store.wait(["seen"])
        return check_sum()
    tensor = torch.ones(1000)
    future = dist.all_reduce(tensor, async_op=True).get_future()  # as DDP's reducer does
    cause, end = None, time.monotonic() + 40
    while cause != "missing":
        command = [os.environ["LOCKSTEP_PROGRAM"], "recorder", "analyze", str(os.getpid()), "--json"]
        seen = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=False).stdout)
        cause = seen["verdict"]["cause"]
        assert time.monotonic() < end, seen["verdict"]
    store.set("seen", "")
    future.wait()
    assert seen["verdict"]["ranks"] == [1], seen["verdict"]
    assert "all_reduce" in seen["verdict"]["text"] and "of Float[1000]" in seen["verdict"]["text"], seen["verdict"]
    assert [each["progress"]["size"] for each in seen["ranks"]] == [RANKS] * RANKS, seen["ranks"]


def check_two_groups(rank):
    """Groups may be destroyed in any order, another one on each rank."""
    groups = [dist.new_group([0, 1]) for _ in range(2)]
    for group in groups:
        check_sum(group)
    for group in groups if rank == 0 else reversed(groups):
        dist.destroy_process_group(group)
    check_sum()


def check_threads():
    """Threads use groups of their own at the same time."""
    groups = [dist.new_group([0, 1]) for _ in range(3)]
    failed = []

    def work(group):
        try:
            for _ in range(20):
                check_sum(group)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(group,)) for group in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed
    for group in groups:
        dist.destroy_process_group(group)


def resources():
    """What a group may leave behind. Its shared memory has no name in /dev/shm: it is a descriptor and a mapping. Cycles of
    Python's objects may hold a group that was destroyed until they are collected."""
    gc.collect()
    with open("/proc/self/maps", encoding="utf-8") as mappings:
        shared = sum(line.split()[1].endswith("s") for line in mappings)
    with open("/proc/self/statm", encoding="utf-8") as pages:
        resident = int(pages.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return {"descriptors": len(os.listdir("/proc/self/fd")), "threads": len(os.listdir("/proc/self/task")),
            "shared mappings": shared, "KiB": resident // 1024}


def check_leaks(use, rounds):
    """What `use` makes is gone after it."""
    for _ in range(3):
        use()
    before = resources()
    for _ in range(rounds):
        use()
    after = resources()
    for what, number in before.items():  # a thread may be ending at either time
        growth = 1024 + 16 * rounds if what == "KiB" else rounds - 1
        assert after[what] <= number + growth, (what, before, after)


class NcclOptions(distributed.Backend.Options):
    def __init__(self):
        super().__init__("nccl", timedelta(seconds=60))


class AnyBackend(type):
    def __instancecheck__(cls, instance):
        return isinstance(instance, distributed.Backend)


class NcclWithoutGpu(metaclass=AnyBackend):
    """Gloo where PyTorch makes its ProcessGroupNCCL, or from 2.15 on its ProcessGroupNCCL2: the group's other backends see what they see beside nccl."""
    Options = NcclOptions

    def __new__(cls, store, rank, size, options, device=None):
        return dist.ProcessGroupGloo(store, rank, size, timeout=options._timeout)


def check_beside_nccl():
    """PyTorch passes nccl's options, the user's or its own, to all backends of the group."""
    c10d = dist.distributed_c10d
    nccl = mock.patch.multiple(
        c10d, ProcessGroupNCCL=NcclWithoutGpu, ProcessGroupNCCL2=NcclWithoutGpu, _nccl2_device=lambda options: None,
        is_nccl_available=lambda: True, create=True)
    for backend, options in (("cuda:nccl,cpu:shm", None), ("cpu:shm,cuda:nccl", NcclOptions()), ("cpu:shm,cuda:nccl", None)):
        with nccl:
            group = dist.new_group([0, 1], backend=backend, pg_options=options, timeout=timedelta(seconds=60))
        assert sorted(dist.get_backend_config(group).split(",")) == ["cpu:shm", "cuda:nccl"]
        assert group._get_backend(torch.device("cpu")).name() == "shm"
        check_sum(group)
        dist.monitored_barrier(group)
        names = [None] * RANKS
        dist.all_gather_object(names, backend, group=group)
        assert names == [backend] * RANKS, names
        dist.destroy_process_group(group)
    create = dist.Backend._plugins["SHM"].creator_fn
    check_error(TypeError, "the shm backend has no options", lambda: create(None, {"threads": 2}))


def check_late(rank):
    """The GIL is free while a rank waits, and a missing rank is named."""
    groups = [dist.new_group([0, 1], timeout=timedelta(seconds=3)) for _ in range(2)]  # in which the ranks also meet
    if rank == 0:
        check_error(dist.DistBackendError, "rank 1 (pid", lambda: dist.barrier(groups[0]))
        work = dist.all_reduce(torch.ones(3), group=groups[1], async_op=True)
        check_error(dist.DistBackendError, "after a timeout of ", work.get_future().wait)
        assert work.is_completed() and not work.is_success()
    check_sum()  # rank 1 has its groups until then
    group = dist.new_group([0, 1])
    dist.distributed_c10d._set_pg_timeout(timedelta(milliseconds=500), group)
    if rank == 0:
        check_error(dist.DistBackendError, "after a timeout of ", lambda: dist.barrier(group))
    check_sum()


class Interrupted(Exception):
    pass


def check_interrupted(action):
    """A signal handler runs while the call waits, and its exception ends the call, as Ctrl-C does."""
    def interrupt(*_):
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        action()
        raise AssertionError("nobody joins, but the call ended")
    except Interrupted:
        signal.signal(signal.SIGALRM, before)


def join_alone():
    import lockstep_torch

    lockstep_torch._C.create_backend("shm", dist.HashStore(), 0, 2, timedelta(seconds=20), "alone", False)


def check_keyboard_interrupt():
    """Ctrl-C: a signal that another process sends, with Python's own handler."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    code = f"import os, sys, time; sys.stdin.read(); time.sleep(0.1); os.kill({os.getpid()}, {signal.SIGINT})"
    kill = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    try:
        kill.stdin.close()
        join_alone()
        raise AssertionError("nobody joins, but the call ended")
    except KeyboardInterrupt:
        kill.wait()


def check_interrupt(rank):
    check_keyboard_interrupt()
    groups = [dist.new_group([0, 1]) for _ in range(RANKS)]
    check_interrupted(lambda: dist.recv(torch.empty(3), 1 - rank, group=groups[rank]))
    check_interrupted(join_alone)
    ends = []

    def fork():  # this thread is the child's main thread
        child = os.fork()
        if child == 0:
            try:
                check_interrupted(join_alone)
                os._exit(0)
            finally:
                os._exit(1)
        ends.append(os.waitpid(child, 0)[1])

    in_thread(fork)
    assert ends == [0], ends
    check_sum()


def rank_with_leaks(rank, port, rounds):
    """Groups leave nothing behind: subgroups, and default groups that DistributedDataParallel used, each with the next prefix of
    one store."""
    import lockstep_torch  # noqa: F401

    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    prefixes = itertools.count()

    def init():
        prefix = dist.PrefixStore(str(next(prefixes)), store)
        dist.init_process_group("shm", store=prefix, rank=rank, world_size=RANKS, timeout=timedelta(seconds=60))

    def use_job():
        init()
        train(dist.group.WORLD)
        dist.destroy_process_group()

    def use_subgroup():
        group = dist.new_group([0, 1])
        check_sum(group)
        dist.all_reduce(torch.ones(3), group=group, async_op=True).get_future().wait()
        dist.destroy_process_group(group)

    check_leaks(use_job, rounds)
    init()
    check_leaks(use_subgroup, rounds)
    dist.destroy_process_group()


def rank_in_detail(rank, port):
    """TORCH_DISTRIBUTED_DEBUG=DETAIL compares the calls of the ranks before the backend gets them."""
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
    dist.set_debug_level_from_env()
    for backend in ("shm", "cpu:shm"):
        join(rank, backend, port)
        check_sum()
        if hasattr(functional, "all_gather_single"):  # earlier releases compare no coalesced all-gathers
            check_functional(rank)
        train(dist.group.WORLD)
        check_error(RuntimeError, "Detected mismatch between collectives on ranks",
                    lambda: dist.all_reduce(torch.ones(3 + rank)))
        check_sum()
        dist.destroy_process_group()


def rank_main(rank, port):
    if rank == 1:
        in_thread(lambda: importlib.import_module("lockstep_torch"))
    join(rank, "shm", port)
    check_caching_allocator()
    check_sum()
    check_timeout()
    check_seen_from_outside(rank)
    train(dist.group.WORLD)
    for backend in ("cpu:shm", "cpu:hierarchical"):
        train(dist.new_group([0, 1], backend=backend))
    check_losses(dist.group.WORLD, 0)
    check_error(ValueError, "send: dst is 7", lambda: dist.group.WORLD._get_backend(torch.device("cpu")).send(
        [torch.ones(1)], 7, 0))
    check_functional(rank)
    check_monitored_barrier(rank)
    check_fork()
    check_two_groups(rank)
    check_beside_nccl()
    check_threads()
    check_interrupt(rank)
    check_late(rank)
    dist.destroy_process_group()
    join(rank, "cpu:hierarchical", port)
    check_sum()
    dist.destroy_process_group()
    join(rank, "shm", port)
    check_sum()
    if rank == 0:  # ends with a call under way that cannot complete
        work = dist.all_reduce(torch.ones(10), async_op=True)
        future = work.get_future()
        future.then(lambda done: done)


def main():
    import torch._dynamo  # noqa: F401  (DistributedDataParallel imports it; before the forks, once)

    rounds = int(os.environ.get("LOCKSTEP_FAULT_ROUNDS", "1"))
    limit = 120 if rounds == 1 else 300
    load = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() if rounds > 1 else 0)]
    try:
        for i in range(rounds):
            run(rank_main, RANKS, limit=limit)
            if (i + 1) % 20 == 0:
                print(f"{i + 1} of {rounds} rounds", flush=True)
        run(rank_in_detail, RANKS, limit=limit)
        run(rank_with_leaks, RANKS, max(5, rounds), limit=limit)
    finally:
        for process in load:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main()
