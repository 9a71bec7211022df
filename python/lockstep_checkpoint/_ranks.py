# SPDX-License-Identifier: BSD-3-Clause
"""What the ranks of a run do together, and the error that all of them raise."""

import os

import torch.distributed as dist


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be written, read or loaded."""


def is_distributed(group):
    return dist.is_initialized() and dist.get_world_size(group) > 1


def rank(group):
    return dist.get_rank(group) if dist.is_initialized() else 0


def launched_size():
    size = os.environ.get("WORLD_SIZE", "")
    return int(size) if size.isdecimal() else 1  # init_process_group() reports another text


def on_first(group, action):
    """The result of rank 0's `action` on every rank; its failure is one on every rank."""
    if not is_distributed(group):
        return action()
    outcome = [None, None]
    if rank(group) == 0:
        try:
            outcome[1] = action()
        except Exception as error:
            outcome[0] = str(error)
    dist.broadcast_object_list(outcome, group=group, group_src=0)
    if outcome[0] is not None:
        raise CheckpointError(outcome[0])
    return outcome[1]
