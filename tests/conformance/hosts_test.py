# SPDX-License-Identifier: BSD-3-Clause
"""The backends at four ranks, and hierarchical on two hosts of two: hosts_test.py"""

import itertools
import os
from unittest import mock

import torch
import torch.distributed as dist

from python_ranks import check_error, check_losses, join, run, train

# The names since PyTorch 2.14, and those before.
all_gather_single = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
reduce_scatter_single = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


def group_of_two_hosts(rank, backend="hierarchical"):
    """Ranks 0 and 1 are on one host, 2 and 3 on another."""
    with mock.patch.dict(os.environ, LOCKSTEP_HOST_ID=str(rank // 2)):
        return dist.new_group(backend=backend)


def check_hosts(rank, group):
    """A sum is that of the hosts' sums, see docs/hosts.md; small and large calls take different ways."""
    for numel in (100, 100_000):
        parts = [torch.rand(numel, generator=torch.Generator().manual_seed(i)) for i in range(4)]
        expected = (parts[0] + parts[1]) + (parts[2] + parts[3])
        total = parts[rank].clone()
        dist.all_reduce(total, group=group)
        assert torch.equal(total, expected), (numel, total, expected)
        piece = torch.empty(numel // 4)
        reduce_scatter_single(piece, parts[rank], group=group)
        assert torch.equal(piece, expected.chunk(4)[rank]), (numel, piece)
        gathered = torch.empty(4 * numel)
        all_gather_single(gathered, parts[rank], group=group)
        assert torch.equal(gathered, torch.cat(parts)), (numel, gathered)
        exchanged = torch.empty(numel)
        dist.all_to_all_single(exchanged, parts[rank], group=group)
        assert torch.equal(exchanged, torch.cat([part.chunk(4)[rank] for part in parts])), (numel, exchanged)
        last = parts[rank].clone()
        dist.broadcast(last, 3, group=group)
        assert torch.equal(last, parts[3]), (numel, last)
    dist.monitored_barrier(group)


def check_posted_receives(rank):
    """A receive that is posted ahead does not wait for its sender, which may wait for this rank."""
    for first, second, third in itertools.permutations(range(3)):
        group = group_of_two_hosts(rank)
        numbers = torch.zeros(2)
        if rank == first:
            receives = [dist.irecv(number, second, group=group) for number in numbers]
            dist.send(torch.ones(1)[0], third, group=group)
            for receive in receives:
                receive.wait()
            assert numbers.tolist() == [1, 2], numbers
        elif rank == second:
            dist.recv(numbers[0], third, group=group)
            for send in [dist.isend(numbers[0] + i, first, group=group) for i in range(2)]:
                send.wait()
        elif rank == third:
            dist.recv(numbers[0], first, group=group)
            dist.send(numbers[0], second, group=group)
        dist.barrier(group)
        dist.destroy_process_group(group)
    group = group_of_two_hosts(rank)
    numbers = torch.zeros(2)
    if rank == 0:  # in the order of the calls, also from any rank
        receives = [dist.irecv(numbers[0], 1, group=group), dist.irecv(numbers[1], group=group)]
        for receive in receives:
            receive.wait()
        assert numbers.tolist() == [1, 2], numbers
    elif rank == 1:
        for number in (1.0, 2.0):
            dist.send(torch.tensor(number), 0, group=group)
    dist.barrier(group)


def rank_of_four(rank, port):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # connects the two hosts
    join(rank, "shm", port, ranks=4)
    check_losses(dist.group.WORLD, 1e-5)
    check_error(dist.DistBackendError, "run on different hosts", lambda: group_of_two_hosts(rank, "shm"))
    group = group_of_two_hosts(rank)
    check_hosts(rank, group)
    check_posted_receives(rank)
    train(group)
    check_losses(group, 1e-5)
    dist.destroy_process_group()


if __name__ == "__main__":
    import torch._dynamo  # noqa: F401  (DistributedDataParallel imports it; before the forks, once)

    run(rank_of_four, 4, limit=90)
