# SPDX-License-Identifier: BSD-3-Clause
"""Lockstep's shared-memory backend for torch.distributed, on the CPU of one host.

    import lockstep_torch
    torch.distributed.init_process_group("shm")
"""

import torch.distributed as dist

from lockstep_torch import _C


def _create_shm(options, backend_options):
    if backend_options is not None:
        raise TypeError(f"the shm backend has no options; pass none instead of {backend_options!r}")
    return _C.create_shm(
        options.store, options.group_rank, options.group_size, options.timeout, options.group_id)


dist.Backend.register_backend("shm", _create_shm, extended_api=True, devices=["cpu"])
