# SPDX-License-Identifier: BSD-3-Clause
"""Groups that are split, and groups that a rank forks, destroys or leaves while a call is under way: groups_test.py"""

import fcntl
import os
import tempfile
from datetime import timedelta
from unittest import mock

import torch
import torch.distributed as dist

from hosts_test import group_of_two_hosts
from python_ranks import check_error, check_sum, join, run


def total_of(group):
    total = torch.ones(1000)
    group.allreduce([total]).wait()
    return total[0].item()


def check_split(rank):
    """PyTorch splits the backends of all devices, with the options of one of them."""
    world = dist.group.WORLD
    assert world._get_backend(torch.device("cpu")).supports_splitting
    keeps_order = tuple(int(number) for number in torch.__version__.split(".")[:2]) >= (2, 14)
    for options in (None, dist.ProcessGroupGloo._Options()):
        pair = world.split_group([1, 0], timeout=timedelta(seconds=30), opts=options)
        assert (pair.rank(), pair.size(), total_of(pair)) == (1 - rank if keeps_order else rank, 2, 2), pair
        assert total_of(world.split_group([rank], group_name=f"alone {rank}")) == 1
    assert total_of(pair.split_group([0, 1], group_name="of the pair")) == 2
    assert world.split_group([1 - rank], group_name=f"of {1 - rank}") is None
    assert total_of(world.split_group([rank], group_name=f"of {rank}")) == 1
    mixed = dist.new_group([0, 1], backend="cpu:shm,cuda:gloo")
    assert total_of(mixed.split_group([0, 1], group_name="of both devices")) == 2
    check_sum()


def in_child(action):
    """Whether `action` succeeds in a forked child."""
    child = os.fork()
    if child == 0:
        try:
            action()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def refused(action):
    check_error(dist.DistBackendError, "was forked off this rank", action)


def check_fork(rank, group):
    """A child neither makes nor waits for a call of the rank."""
    total = torch.ones(1000)
    if rank == 0:
        work = dist.all_reduce(total, group=group, async_op=True)

        def use():
            refused(work.wait)
            assert work.is_completed()
            refused(lambda: dist.monitored_barrier(group))
            refused(lambda: check_sum(group))
            dist.destroy_process_group(group)

        assert in_child(use)
        dist.barrier()
        work.wait()
    else:
        dist.barrier()
        dist.all_reduce(total, group=group)
    assert total.eq(dist.get_world_size(group)).all(), total
    dist.monitored_barrier(group)


def check_destroyed(rank):
    """A group may be destroyed while a call is under way, which continues."""
    group = group_of_two_hosts(rank)
    total = torch.ones(1000)
    if rank == 0:
        work = dist.all_reduce(total, group=group, async_op=True)
        dist.destroy_process_group(group)
        del group
        dist.barrier()
        work.wait()
    else:
        dist.barrier()
        dist.all_reduce(total, group=group)
    assert total.eq(4).all(), total


def check_hosts_split(rank):
    group = group_of_two_hosts(rank)
    with mock.patch.dict(os.environ, LOCKSTEP_HOST_ID=str(rank // 2)):
        part = group.split_group([0, 1, 2], group_name="three")
    if rank == 3:
        assert part is None
    else:
        assert total_of(part) == 3


def end_first(rank, lock):
    """Rank 0 ends with calls under way that the others do not join, and before them."""
    group = group_of_two_hosts(rank)
    with open(lock, "w", encoding="utf-8") as file:
        if rank == 0:
            fcntl.flock(file, fcntl.LOCK_EX)
        dist.barrier()
        if rank == 0:
            dist.all_reduce(torch.ones(1000), group=group, async_op=True)
            dist.gather(torch.ones(1000), [torch.empty(1000) for _ in range(4)], group=group, async_op=True)
            file = os.dup(file.fileno())  # until the process ends
        else:
            fcntl.flock(file, fcntl.LOCK_SH)


def rank_of_two(rank, port):
    join(rank, "shm", port)
    check_split(rank)
    check_fork(rank, dist.new_group([0, 1]))
    dist.destroy_process_group()


def rank_of_four(rank, port, lock):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # connects the two hosts
    join(rank, "shm", port, ranks=4)
    check_hosts_split(rank)
    check_fork(rank, group_of_two_hosts(rank))
    check_destroyed(rank)
    end_first(rank, lock)


def main():
    run(rank_of_two, 2, limit=60)
    with tempfile.TemporaryDirectory() as folder:
        run(rank_of_four, 4, os.path.join(folder, "lock"), limit=50)


if __name__ == "__main__":
    main()
