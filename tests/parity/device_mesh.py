# SPDX-License-Identifier: BSD-3-Clause
"""What PyTorch's DeviceMesh says on every rank, for meshes given as "sizes ranks": device_mesh.py <mesh>..."""
import itertools
import sys
import warnings

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

NAMES = ("dp", "pp", "cp", "tp")
IS_OLD = tuple(int(number) for number in torch.__version__.split(".")[:2]) < (2, 13)


def show(values):
    return " ".join(str(value) for value in values)


def describe(label, mesh):
    groups = [show(dist.get_process_group_ranks(group)) for group in mesh.get_all_groups()]
    local = [mesh.get_local_rank(dim) for dim in range(mesh.ndim)]
    names = show(mesh.mesh_dim_names)
    print(f"{label}: {names} | {show(mesh.shape)} | {show(mesh.mesh.flatten().tolist())} | {show(mesh.get_coordinate())} | "
          f"{show(local)} | {'; '.join(groups)} | {mesh.size()} {mesh.ndim}")


def describe_slice(label, mesh, names):
    """Before PyTorch 2.13 a mesh has no slices of flattened dimensions that are apart."""
    try:
        slice_ = mesh[names]
    except NotImplementedError:
        if not IS_OLD:
            raise
        print(f"{label}: not in this release")
        return
    describe(label, slice_)


def on_rank(text, rank, world_size):
    shape, _, ranks = text.partition(" ")
    shape = tuple(int(size) for size in shape.split(","))
    names = NAMES[:len(shape)]
    if ranks:
        tensor = torch.tensor([int(number) for number in ranks.split(",")]).view(shape)
        mesh = DeviceMesh("cpu", tensor, mesh_dim_names=names)
    else:
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    print(f"mesh {text} rank {rank}")
    if mesh.get_coordinate() is None:
        print("outside")
        return
    describe("whole", mesh)
    for count in range(1, len(names) + 1):
        for part in itertools.combinations(names, count):
            slice_ = mesh[part]
            describe("slice", slice_)
            describe("flat", slice_._flatten())
            describe_slice("named", mesh, part if count == len(names) else "_".join(part))
            later = names[names.index(part[-1]) + 1:]
            if later:
                describe_slice("mixed", mesh, ("_".join(part), later[-1]))
    describe("group", DeviceMesh.from_group(mesh.get_group(0), "cpu", mesh_dim_names=("only",)))
    describe("groups", DeviceMesh.from_group(mesh.get_all_groups(), "cpu", mesh.mesh, mesh_dim_names=names))
    for dim, size in enumerate(shape):
        if size % 2 == 0:
            split = mesh._unflatten(dim, (2, size // 2), ("left", "right"))
            describe("split", split)
            describe("left", split["left"])
            describe("right", split["right"])
            describe("joined", split[split.mesh_dim_names[dim:]]._flatten(f"joined{dim}"))
            # By its number: PyTorch 2.11 refuses the names that the mesh has.
            slice_ = mesh[names[dim:]]._unflatten(0, (size // 2, 2), ("outer", "inner"))
            describe("split slice", slice_)
            describe("inner", slice_["inner"])


warnings.simplefilter("ignore")
world_size = int(sys.argv[1])
for text in sys.argv[2:]:
    for rank in range(world_size):
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
        on_rank(text, rank, world_size)
        dist.destroy_process_group()
