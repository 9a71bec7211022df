# SPDX-License-Identifier: BSD-3-Clause
"""What PyTorch promises of reconfigure, sentence by sentence, with our backends: reconfigure_test.py

PyTorch's functions for it came with 2.15. With an earlier release the test is that our groups promise nothing."""

import itertools
import multiprocessing
import os
import signal
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from python_ranks import check_error, is_shared, join, store_process

RANKS = 4
CPU = torch.device("cpu")
LIMIT = timedelta(seconds=60)
SHORT = timedelta(milliseconds=300)


class Rank:
    """A rank of a default group that was made with enable_reconfigure."""

    def __init__(self, rank, backend, port):
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        if backend == "hierarchical":  # ranks 0 and 1 are on one host, 2 and 3 on another
            os.environ["LOCKSTEP_HOST_ID"] = str(rank // 2)
        self.rank, self.name = rank, backend
        self.store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
        self.groups = itertools.count()
        self.keys = itertools.count()

    def init(self):
        prefix = dist.PrefixStore(f"{self.name}/{next(self.groups)}", self.store)
        dist.init_process_group(
            self.name, store=prefix, rank=self.rank, world_size=RANKS, timeout=LIMIT, enable_reconfigure=True)

    @property
    def backend(self):
        return dist.group.WORLD._get_backend(CPU)

    def meet(self, value="", of=range(RANKS)):
        """The values of these ranks; each of them calls it."""
        key = f"{self.name}/value/{next(self.keys)}"
        self.store.set(f"{key}/{self.rank}", value)
        return [self.store.get(f"{key}/{rank}").decode() for rank in of]

    def handles(self, of=range(RANKS)):
        return self.meet(dist._get_reconfigure_handle(), of)

    def form(self, uuid, of=range(RANKS)):
        work = dist._reconfigure(uuid, self.handles(of), timeout=LIMIT)
        assert work.wait() and work.is_completed()
        assert (dist.get_rank(), dist.get_world_size()) == (list(of).index(self.rank), len(of))


def check_sums():
    size, rank = dist.get_world_size(), dist.get_rank()
    for numel in (4, 100_000):
        total = torch.full((numel,), rank + 1.0)
        dist.all_reduce(total)
        assert total.eq(size * (size + 1) / 2).all(), total
    if size > 1:
        received = torch.empty(4)
        works = [dist.isend(torch.full((4,), float(rank)), (rank + 1) % size), dist.irecv(received, (rank - 1) % size)]
        for work in works:
            work.wait()
        assert received.eq((rank - 1) % size).all(), received


def a_group_begins_without_members(own):
    """enable_reconfigure: the communicator is not initialized until reconfigure() is called."""
    assert dist._supports_reconfigure() and own.backend.supports_reconfigure
    check_error(dist.DistBackendError, "call reconfigure() first", lambda: dist.all_reduce(torch.ones(1)))
    own.form(100)
    check_sums()


def handles_are_opaque_strings(own):
    """get_reconfigure_handle returns an opaque handle that peers exchange out-of-band, one per peer."""
    handles = own.handles()
    assert all(isinstance(handle, str) for handle in handles) and len(set(handles)) == RANKS, handles
    check_error(ValueError, "is no handle", lambda: dist._reconfigure(1, [handles[own.rank], "gloo:0:-1:0:"]))
    check_error(ValueError, "listed twice", lambda: dist._reconfigure(1, [handles[own.rank]] * 2))
    check_error(ValueError, "lacks the handle", lambda: dist._reconfigure(1, [handles[own.rank - 1]]))
    check_error(ValueError, "is empty", lambda: dist._reconfigure(1, []))
    own.form(1)
    assert set(own.handles()).isdisjoint(handles), "a handle of the group before"
    check_sums()


def a_list_assigns_ranks_by_position(own):
    own.form(1, of=[2, 0, 3, 1])
    check_sums()
    own.form(2, of=[1, 3, 0, 2])
    check_sums()


def a_set_lets_the_backend_choose(own):
    handles = set(own.handles())
    assert dist._reconfigure(1, handles, timeout=LIMIT).wait()
    ranks = own.meet(str(dist.get_rank()))
    assert sorted(ranks) == [str(rank) for rank in range(RANKS)], ranks
    check_sums()


def a_uuid_serves_once(own):
    """Must not have been used previously on this communicator."""
    alone = 1100 + own.rank
    assert dist._reconfigure(alone, [dist._get_reconfigure_handle()]).wait()
    check_error(dist.DistBackendError, "already used", lambda: dist._reconfigure(alone, [dist._get_reconfigure_handle()]))
    check_sums()  # the group stays
    own.form(1)
    # If one rank has used it, it is an error of all.
    handles = own.handles()
    check_error(dist.DistBackendError, "uuid 1100 was already used", lambda: dist._reconfigure(1100, handles, timeout=LIMIT))
    own.form(2)
    check_sums()


def a_timeout_ends_it(own):
    """How long to allow reconfiguration before failing; none: the backend's. It can be tried again."""
    own.form(1)
    handles = own.handles()
    if own.rank == 0:
        missing = "timed out: ranks 1, 2, 3 did not call it within 300 ms"
        check_error(dist.DistBackendError, missing, lambda: dist._reconfigure(2, handles, timeout=SHORT))
        own.backend.set_timeout(SHORT)
        check_error(dist.DistBackendError, missing, lambda: dist._reconfigure(3, handles))
        own.backend.set_timeout(LIMIT)
        check_error(dist.DistBackendError, "has left the group", lambda: dist.all_reduce(torch.ones(1)))
    own.meet()
    own.form(4)
    check_sums()


def hints_are_the_backends(own):
    """Backend-specific configuration: ours have none and ignore them, as Gloo."""
    assert dist._reconfigure(1, own.handles(), timeout=LIMIT, hints={"any": "thing"}).wait()
    check_sums()


def members_part_and_meet(own):
    """reconfigure (re)initializes the communicator with a new set of peers."""
    dist._reconfigure(600 + own.rank, [dist._get_reconfigure_handle()]).wait()  # each alone
    assert (dist.get_rank(), dist.get_world_size()) == (0, 1)
    check_sums()
    own.form(1)
    check_sums()
    halves = own.handles()
    half = halves[:2] if own.rank < 2 else halves[2:]
    dist._reconfigure(2 + own.rank // 2, half).wait()
    check_sums()
    own.form(4)
    own.form(5)  # the same ones
    check_sums()
    for i in range(3):  # without one, and with it as the last
        others = [rank for rank in range(RANKS) if rank != i]
        handles = own.handles()
        if own.rank != i:
            dist._reconfigure(10 + i, [handles[rank] for rank in others]).wait()
            check_sums()
        own.form(20 + i, of=[*others, i])
        check_sums()


def it_recovers_from_abort_and_timeout(own):
    own.form(1)
    own.backend.abort()
    check_error(dist.DistBackendError, "", lambda: dist.all_reduce(torch.ones(1)))
    assert own.backend.get_error() == torch._C._distributed_c10d.ErrorType.SUCCESS
    own.form(2)
    check_sums()
    own.backend.set_timeout(SHORT)
    if own.rank == 1:
        check_error(dist.DistBackendError, "", lambda: dist.all_reduce(torch.ones(4)))
    own.backend.set_timeout(LIMIT)
    own.meet()
    own.form(3)
    check_sums()


def calls_in_progress_end(own):
    own.form(1)
    work = dist.all_reduce(torch.ones(100_000), async_op=True) if own.rank == 0 else None
    own.form(2)
    if work:
        check_error(dist.DistBackendError, "", work.wait)
    check_sums()


def numbers_begin_again(own):
    own.form(1)
    dist.all_reduce(torch.ones(1))
    own.form(2)
    assert dist.group.WORLD._get_sequence_number_for_group() == 0
    check_sums()


def registered_memory_stays(own):
    """A trained module continues over the group, with its buckets."""
    own.form(1)
    ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 2), gradient_as_bucket_view=True)

    def gradient():
        ddp.zero_grad(set_to_none=False)
        ddp(torch.full((4, 8), dist.get_rank() + 1.0)).sum().backward()
        return ddp.module.weight.grad

    def check():
        size = dist.get_world_size()
        gradient()  # the buckets are laid out again after the first backward pass
        grad = gradient()
        assert is_shared(grad) and grad.eq(4 * (size + 1) / 2).all(), grad
        return grad.data_ptr()

    place = check()
    own.form(2, of=[3, 2, 1, 0])
    assert check() == place
    del ddp


CHECKS = (
    a_group_begins_without_members, handles_are_opaque_strings, a_list_assigns_ranks_by_position, a_set_lets_the_backend_choose,
    a_uuid_serves_once, a_timeout_ends_it, hints_are_the_backends, members_part_and_meet, it_recovers_from_abort_and_timeout,
    calls_in_progress_end, numbers_begin_again, registered_memory_stays)


def living_rank(rank, port, backend):
    import lockstep_torch  # noqa: F401

    torch.set_num_threads(1)
    own = Rank(rank, backend, port)
    for check in CHECKS:
        own.init()
        try:
            check(own)
        except BaseException as error:
            raise AssertionError(f"{backend}, rank {rank}: {check.__name__}") from error
        own.meet()
        dist.destroy_process_group()


def mortal_rank(rank, port, backend):
    """Rank 1 dies, the others go on without it, and then with it started again."""
    import lockstep_torch  # noqa: F401

    torch.set_num_threads(1)
    own = Rank(rank, backend, port)
    own.init()
    is_new = bool(own.store.add(f"{backend}/starts/{rank}", 1) - 1)
    if not is_new:
        own.form(1)
        check_sums()
        handles = own.handles()
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        check_error(dist.DistBackendError, "", lambda: dist.all_reduce(torch.ones(10)))
        check_error(dist.DistBackendError, "rank 1 (pid", lambda: dist._reconfigure(7, handles, timeout=LIMIT))
        own.form(2, of=[0, 2, 3])
        check_sums()
    else:
        own.keys = itertools.count(3)
    own.form(3)
    check_sums()
    own.meet()
    dist.destroy_process_group()


def run(function, backend):
    with store_process() as port:
        def start(rank):
            process = multiprocessing.get_context("fork").Process(target=function, args=(rank, port, backend), daemon=True)
            process.start()
            return process

        processes = [start(rank) for rank in range(RANKS)]
        end = time.monotonic() + 90
        while any(process.exitcode is None for process in processes):
            assert time.monotonic() < end, f"{backend}: a rank does not end"
            for rank, process in enumerate(processes):
                process.join(0.05)
                if function is mortal_rank and process.exitcode == -signal.SIGKILL:
                    processes[rank] = start(rank)
        assert all(process.exitcode == 0 for process in processes), (backend, processes)


def rank_of_earlier_release(rank, port):
    join(rank, "shm", port)
    backend = dist.group.WORLD._get_backend(CPU)
    can_change = tuple(int(number) for number in torch.__version__.split(".")[:2]) >= (2, 14)
    assert can_change or not getattr(backend, "supports_reconfigure", False)
    assert not hasattr(backend, "reconfigure") or can_change
    dist.destroy_process_group()


def main():
    if not hasattr(dist, "_reconfigure"):
        with store_process() as port:
            mp.start_processes(rank_of_earlier_release, (port,), nprocs=2, start_method="fork")
        return
    import torch._dynamo  # noqa: F401  (DistributedDataParallel imports it; before the forks, once)

    for backend in ("shm", "hierarchical"):
        run(living_rank, backend)
        run(mortal_rank, backend)


if __name__ == "__main__":
    main()
