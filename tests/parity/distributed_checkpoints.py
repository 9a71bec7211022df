# SPDX-License-Identifier: BSD-3-Clause
"""Folders of torch.distributed.checkpoint: distributed_checkpoints.py make|check <folder>

make:  <folder>/plain, saved by one process, and <folder>/sharded, by two that have rows and columns of tensors; what is in
       each is in <folder>/plain.pt and sharded.pt.
check: <folder>/cpp, which the other side wrote, holds what <folder>/plain.pt does, and its metadata the tensor properties of
       <folder>/plain.
"""
import os
import pathlib
import sys
import tempfile
import types

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from structures import compare
from torch import nn
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor


def contents():
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    return {"model": dict(net.state_dict()), "optimizer": optimizer.state_dict(), "epoch": 3, "name": "run",
            "rates": [0.1, 0.2], "scalar": torch.tensor(2.5), "half": torch.arange(6, dtype=torch.bfloat16).view(2, 3),
            "empty": torch.empty(0, 3), "turned": torch.arange(6.0).view(2, 3).t(), "parts": [torch.ones(2), {"x": torch.zeros(1)}]}


def properties_of(folder):
    entries = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
    return {name: entry.properties for name, entry in entries.items() if hasattr(entry, "properties")}


def strings(value):
    """Keys come back as strings."""
    if isinstance(value, dict):
        return {str(key): strings(item) for key, item in value.items()}
    return [strings(item) for item in value] if isinstance(value, list) and not all(isinstance(x, float | int) for x in value) else value


def name_paths_as_python_3_13():
    module = sys.modules.setdefault("pathlib._local", types.ModuleType("pathlib._local"))
    module.PosixPath = pathlib.PosixPath
    pathlib.PosixPath.__module__ = "pathlib._local"


def pickle_enums_as_python_3_11_0():
    """So did Python to 3.11.3, Debian 12's among them."""
    enum = dcp.metadata._MEM_FORMAT_ENCODING
    enum.__reduce_ex__ = lambda self, protocol: (getattr, (enum, self.name))


def save_shards(rank, meeting, folder):
    name_paths_as_python_3_13()
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    rows, columns = torch.arange(35.0).view(7, 5), torch.arange(12).view(3, 4)
    dcp.save({"rows": distribute_tensor(rows, mesh, [Shard(0)]), "columns": distribute_tensor(columns, mesh, [Shard(1)]),
              "whole": torch.ones(3)}, checkpoint_id=os.path.join(folder, "sharded"))
    if rank == 0:
        torch.save({"rows": rows, "columns": columns, "whole": torch.ones(3)}, os.path.join(folder, "sharded.pt"))
    dist.destroy_process_group()
    os._exit(0)  # threads of PyTorch's meshes have ended an interpreter that took its time to leave by std::terminate


def main():
    what, folder = sys.argv[1:]
    if what == "make":
        pickle_enums_as_python_3_11_0()
        dcp.save(contents(), checkpoint_id=os.path.join(folder, "plain"))
        torch.save(strings(contents()), os.path.join(folder, "plain.pt"))
        meeting = os.path.join(folder, "meeting")
        torch.multiprocessing.start_processes(save_shards, (meeting, folder), nprocs=2, start_method="fork")
        return
    with tempfile.TemporaryDirectory() as temp:
        dcp_to_torch_save(os.path.join(folder, "cpp"), os.path.join(temp, "cpp.pt"))
        expected = torch.load(os.path.join(folder, "plain.pt"))
        expected["turned"] = expected["turned"].contiguous()  # as loading makes it
        compare(expected, torch.load(os.path.join(temp, "cpp.pt")))
    ours, theirs = (properties_of(os.path.join(folder, name)) for name in ("cpp", "plain"))
    shared = ours.keys() & theirs.keys()
    assert len(shared) > 5, shared
    assert all(ours[name] == theirs[name] for name in shared), [(ours[n], theirs[n]) for n in shared if ours[n] != theirs[n]]
    print("same")


if __name__ == "__main__":
    main()
