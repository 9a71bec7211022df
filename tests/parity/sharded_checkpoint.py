# SPDX-License-Identifier: BSD-3-Clause
"""Tensors whose parts the ranks of the other language had: sharded_checkpoint.py read|layouts [<folder>]

read:    <folder>/cpp is read whole by one process and in parts by two, and compared with <folder>/whole.pt.
layouts: prints where DTensor has parts, one case a line.
"""
import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset


def expect_equal(name, wanted, there):
    if wanted.dtype != there.dtype or not torch.equal(wanted, there):
        raise SystemExit(f"{name}: {there} instead of {wanted}")


def read_whole(folder):
    whole = torch.load(os.path.join(folder, "whole.pt"), weights_only=True)
    state = {"model": {name: torch.full_like(tensor, 7) for name, tensor in whole.items()}, "plain": torch.zeros(3), "epoch": 0}
    dcp.load(state, checkpoint_id=os.path.join(folder, "cpp"))
    for name, tensor in whole.items():
        expect_equal(name, tensor, state["model"][name])
    expect_equal("plain", torch.ones(3), state["plain"])
    assert state["epoch"] == 3


def read_parts(rank, meeting, folder):
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    whole = torch.load(os.path.join(folder, "whole.pt"), weights_only=True)
    placed = {"rows": [Shard(1)], "blocks": [Shard(0)], "cube": [Shard(1)], "copies": [Replicate()]}
    state = {"model": {name: distribute_tensor(torch.full_like(whole[name], 7), mesh, placement) for name, placement in placed.items()}}
    dcp.load(state, checkpoint_id=os.path.join(folder, "cpp"))
    for name in placed:
        expect_equal(name, whole[name], state["model"][name].full_tensor())
    dist.destroy_process_group()
    # All has been seen; threads of PyTorch's meshes have ended an interpreter that took its time to leave by std::terminate.
    os._exit(0)


def print_layouts():
    cases = [((7, 5), (2,), [Shard(0)]), ((7, 5), (3,), [Shard(1)]), ((2, 3), (4,), [Shard(0)]), ((7, 11), (2, 3), [Shard(0), Shard(1)]),
             ((7, 11), (2, 3), [Shard(1), Shard(1)]), ((5,), (2, 2), [Shard(0), Shard(0)]), ((3,), (2, 2), [Shard(0), Shard(0)]),
             ((6, 4), (2, 2), [Replicate(), Shard(0)]), ((0, 4), (2,), [Shard(0)]), ((), (2,), [Replicate()]),
             ((9, 8, 7), (2, 2, 2), [Shard(2), Shard(0), Shard(2)])]
    for shape, mesh, placements in cases:
        for flat in range(torch.Size(mesh).numel()):
            coordinate = [int(i) for i in torch.unravel_index(torch.tensor(flat), mesh)]
            local, offset = _compute_local_shape_and_global_offset(shape, mesh, coordinate, placements)
            dims = [placement.dim if isinstance(placement, Shard) else -1 for placement in placements]
            print("|".join(" ".join(map(str, numbers)) for numbers in (shape, mesh, coordinate, dims, local, offset)))


def main():
    if sys.argv[1] == "layouts":
        print_layouts()
        return
    read_whole(sys.argv[2])
    with tempfile.TemporaryDirectory() as temp:
        torch.multiprocessing.start_processes(read_parts, (os.path.join(temp, "meeting"), sys.argv[2]), nprocs=2, start_method="fork")
    print("same")


if __name__ == "__main__":
    main()
