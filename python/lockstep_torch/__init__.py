# SPDX-License-Identifier: BSD-3-Clause
"""Lockstep's backends for torch.distributed, on the CPU: shm on one host, hierarchical on several.

    import lockstep_torch
    torch.distributed.init_process_group("shm")
"""

import functools
import importlib.util
import os
import sys
from datetime import timedelta

from lockstep_torch._build import torch_version, version as __version__

try:
    import torch
    import torch.distributed as dist
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(
        f"lockstep_torch {__version__} needs torch {torch_version}, and no torch is installed: install torch=={torch_version}",
        name="torch") from None

# Their C++ interfaces differ, so loading the module would fail with an undefined symbol, or crash.
if torch.__version__.split("+")[0] != torch_version:
    raise ImportError(
        f"lockstep_torch {__version__} was built for torch {torch_version}, but torch {torch.__version__} is "
        f"installed: install torch=={torch_version}, or the lockstep_torch of your torch")

from torch._C._distributed_c10d import Backend as _C10dBackend  # noqa: E402

if importlib.util.find_spec("lockstep_torch._C") is None:
    _found = sorted(name.split(".")[1] for name in os.listdir(os.path.dirname(__file__)) if name.startswith("_C."))
    raise ImportError(f"lockstep_torch {__version__} has no module for {sys.implementation.cache_tag}, only for "
                      f"{', '.join(_found)}: install the lockstep_torch of this Python")
from lockstep_torch import _C  # noqa: E402

#: As torch.utils.cmake_prefix_path: where CMake finds Lockstep's package.
cmake_prefix_path = os.path.dirname(os.path.abspath(__file__))


def _register(name):
    def create(options, backend_options):
        # The loop of PyTorch over a group's backends passes nccl's on to those that follow, and the caller's to all.
        if backend_options is not None and not isinstance(backend_options, _C10dBackend.Options):
            raise TypeError(f"the {name} backend has no options; pass none instead of {backend_options!r}")
        return _C.create_backend(
            name, options.store, options.group_rank, options.group_size, options.timeout, options.group_id,
            getattr(options, "enable_reconfigure", False))  # torch 2.14 and later

    dist.Backend.register_backend(name, create, extended_api=True, devices=["cpu"])


def enable_caching_cpu_allocator():
    """Makes the process keep freed CPU memory for the next step instead of returning it to the kernel.

    Keeps up to 2 GiB of idle blocks in huge pages for tensors of 16 MiB and more, and up to 1 GiB in the heap. Call it at the
    start of the program. Does nothing where MALLOC_* variables, jemalloc, tcmalloc or mimalloc configure the heap. C++ programs
    have it by default.
    """
    _C.enable_caching_cpu_allocator()


def _is_ours(group):
    """Whether `group` has one of our backends, and this rank is in it."""
    return dist.get_rank(group) >= 0 and not _CPU.isdisjoint(dist.get_backend_config(group).split(","))


def _extend_monitored_barrier():
    """PyTorch's function refuses every backend whose name is not gloo. This one also calls ours."""
    of_torch = dist.monitored_barrier

    @functools.wraps(of_torch)
    def monitored_barrier(group=None, timeout=None, wait_all_ranks=False):
        if not _is_ours(group):
            return of_torch(group, timeout, wait_all_ranks)
        limit = {} if timeout is None else {"timeout": timeout}
        return (group or dist.group.WORLD).monitored_barrier(wait_all_ranks=wait_all_ranks, **limit)

    dist.monitored_barrier = dist.distributed_c10d.monitored_barrier = monitored_barrier


def _extend_set_pg_timeout():
    """PyTorch's function sets the timeouts of gloo and nccl only. This one also sets ours."""
    of_torch = dist.distributed_c10d._set_pg_timeout

    @functools.wraps(of_torch)
    def set_pg_timeout(timeout, group=None):
        if isinstance(timeout, timedelta) and _is_ours(group):
            of_group = group or dist.group.WORLD
            _C.set_timeout(of_group._get_backend(torch.device("cpu")), timeout)
            if of_group._device_types == [torch.device("cpu")]:
                return None
        return of_torch(timeout, group)

    dist.distributed_c10d._set_pg_timeout = set_pg_timeout


def _set_default_backends():
    """DistributedDataParallel takes the memory of its buckets from the default backend of its group. PyTorch gives a group of
    "cpu:shm" none, because it compares the names of registered backends in upper case; beside these nor one of "cpu:gloo"."""
    of_torch = dist.distributed_c10d._new_process_group_helper

    @functools.wraps(of_torch)
    def new_process_group_helper(*args, **kwargs):
        group, store = of_torch(*args, **kwargs)
        if group is not dist.GroupMember.NON_GROUP_MEMBER and group.name() == "undefined":
            names = dict(pair.split(":") for pair in dist.get_backend_config(group).split(","))
            if "cpu" in names:
                group._set_default_backend(dist.Backend.backend_type_map[names["cpu"]])
        return group, store

    dist.distributed_c10d._new_process_group_helper = new_process_group_helper


# DistributedDataParallel takes the memory of its buckets from the backend only with this, also from NCCL.
if torch.cuda.device_count() == 0:
    os.environ.setdefault("DDP_DISABLE_COMM_MEM", "0")

_NAMES = ("shm", "hierarchical")
_CPU = {f"cpu:{name}" for name in _NAMES}
for _name in _NAMES:
    _register(_name)
_extend_monitored_barrier()
_extend_set_pg_timeout()
_set_default_backends()
