# SPDX-License-Identifier: BSD-3-Clause
"""Folders of torch.distributed.checkpoint for the tests of `lockstep ckpt`: ckpt_folders.py <what> <argument>...

make <folder>:         <folder>/run, saved by one process; <folder>/sharded, flat, by two that have parts of tensors; run.pt and
                       sharded.pt are what dcp_to_torch_save makes of them, and run_source.pt is what was saved.
same <folder> <file>:  the file (.pt or .safetensors) holds what dcp_to_torch_save makes of the folder.
loads <file> <folder>: dcp.load fills the structure of the file from the folder, and torch_save_to_dcp has the same entries.
"""
import os
import sys
import tempfile

import safetensors.torch
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save, torch_save_to_dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "parity"))
from structures import compare  # noqa: E402


def run():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    return {"model": dict(model.state_dict()), "optimizer": optimizer.state_dict(), "epoch": 3, "name": "run", "rates": [0.1, 0.2],
            "half": torch.arange(6, dtype=torch.bfloat16).view(2, 3), "empty": torch.empty(0, 3),
            "parts": [torch.ones(2), {"x": torch.zeros(1)}]}


def save_shards(rank, meeting, folder):
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    rows = distribute_tensor(torch.arange(35.0).view(7, 5), mesh, [Shard(0)])
    columns = distribute_tensor(torch.arange(12).view(3, 4), mesh, [Shard(1)])
    dcp.save({"rows": rows, "columns": columns, "whole": torch.ones(3)}, checkpoint_id=folder)
    dist.destroy_process_group()
    os._exit(0)  # threads of PyTorch's meshes have ended an interpreter that took its time to leave by std::terminate


def make(folder):
    dcp.save(run(), checkpoint_id=os.path.join(folder, "run"))
    torch.save(run(), os.path.join(folder, "run_source.pt"))
    torch.multiprocessing.start_processes(save_shards, (os.path.join(folder, "meeting"), os.path.join(folder, "sharded")), nprocs=2, start_method="fork")
    for name in ("run", "sharded"):
        dcp_to_torch_save(os.path.join(folder, name), os.path.join(folder, name + ".pt"))


def contents_of(path):
    if path.endswith(".safetensors"):
        return safetensors.torch.load_file(path)
    return torch.load(path, weights_only=True)


def plain(value):
    """Dicts with string keys in sorted order: a folder of Python's stores neither key types nor order."""
    if isinstance(value, dict):
        return {str(key): plain(value[key]) for key in sorted(value, key=str)}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value.contiguous() if isinstance(value, torch.Tensor) else value


def same(folder, path):
    with tempfile.TemporaryDirectory() as temp:
        whole = os.path.join(temp, "whole.pt")
        dcp_to_torch_save(folder, whole)
        compare(plain(contents_of(whole)), plain(contents_of(path)))


def emptied(value):
    if isinstance(value, torch.Tensor):
        return torch.full_like(value, 7)
    if isinstance(value, dict):
        return {key: emptied(item) for key, item in value.items()}
    return [emptied(item) for item in value] if isinstance(value, list) else value


def entries_of(folder):
    return sorted(FileSystemReader(folder).read_metadata().state_dict_metadata)


def loads(path, folder):
    wanted = contents_of(path)
    there = emptied(wanted)
    dcp.load(there, checkpoint_id=folder)
    compare(plain(wanted), plain(there))
    with tempfile.TemporaryDirectory() as temp:
        source, theirs = os.path.join(temp, "source.pt"), os.path.join(temp, "theirs")
        torch.save(wanted, source)
        torch_save_to_dcp(source, theirs)
        assert entries_of(folder) == entries_of(theirs), (entries_of(folder), entries_of(theirs))


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
    print(sys.argv[1])
