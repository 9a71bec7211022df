# SPDX-License-Identifier: BSD-3-Clause
"""modelnet_files.py FOLDER: writes small ModelNet40 folders in the published forms, damaged ones, and expected.pt with
what Python reads from them and draws."""
import pathlib
import random
import sys

import h5py
import numpy
import torch

folder = pathlib.Path(sys.argv[1])
draw = random.Random(20240304)
numbers = numpy.random.RandomState(20240304)
CLASSES = ["airplane", "bathtub", "bed", "night_stand"]
POINTS = 64


def points(count):
    return numbers.uniform(-1, 1, (count, POINTS, 3)).astype("float32")


def labels(count):
    return numbers.randint(0, len(CLASSES), (count, 1)).astype("uint8")


def write_h5(path, **options):
    """As the published files: "faceId" and "normal" too, compressed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    count = draw.randrange(1, 6)
    with h5py.File(path, "w") as file:
        file.create_dataset("data", data=points(count), **options)
        file.create_dataset("faceId", data=numbers.randint(0, 99, (count, POINTS)).astype("int32"), **options)
        file.create_dataset("label", data=labels(count), **options)
        file.create_dataset("normal", data=points(count), **options)


def write_published(root):
    home = root / "modelnet40_ply_hdf5_2048"
    write_h5(home / "ply_data_train0.h5", compression="gzip", compression_opts=4)
    write_h5(home / "ply_data_train1.h5", compression="gzip", shuffle=True, chunks=True)
    write_h5(home / "ply_data_train2.h5")
    write_h5(home / "ply_data_test0.h5", compression="gzip", compression_opts=1)
    write_h5(home / "ply_data_test1.h5")
    order = ["ply_data_train2.h5", "ply_data_train0.h5", "ply_data_train1.h5"]
    (home / "train_files.txt").write_text("".join(f"data/modelnet40_ply_hdf5_2048/{name}\n" for name in order))
    (home / "shape_names.txt").write_text("\n".join(CLASSES) + "\n")
    return {"train": load_data([home / name for name in order]), "test": load_data(sorted(home.glob("ply_data_test*.h5")))}


def load_data(paths):
    """As DGCNN's load_data()."""
    all_data, all_label = [], []
    for path in paths:
        with h5py.File(path, "r") as file:
            all_data.append(file["data"][:].astype("float32"))
            all_label.append(file["label"][:].astype("int64"))
    return (torch.from_numpy(numpy.concatenate(all_data)), torch.from_numpy(numpy.concatenate(all_label)).squeeze(1))


def damaged_files():
    """{folder: what the error should contain}"""
    expected = {}

    def damaged(name, message, **sets):
        home = folder / "damaged" / name
        home.mkdir(parents=True)
        with h5py.File(home / "ply_data_train0.h5", "w") as file:
            for key, value in {"data": points(2), "label": labels(2), **sets}.items():
                if isinstance(value, dict):
                    file.create_dataset(key, **value)
                elif isinstance(value, str):
                    file.create_group(key)
                elif value is not None:
                    file[key] = value
        expected[name] = f"ply_data_train0.h5: {message}"
        return home

    damaged("no data", 'data set "data": libhdf5: object \'data\' doesn\'t exist', data=None)
    damaged("no label", 'data set "label": libhdf5: object', label=None)
    damaged("group", 'data set "data": libhdf5: ', data="group")
    damaged("rank", 'data set "data": its shape is [2, 192]; it should be [clouds, points, 3]', data=points(2).reshape(2, -1))
    damaged("axes", 'data set "data": its shape is [2, 64, 2]', data=points(2)[:, :, :2])
    damaged("scalar", 'data set "data": its shape is []', data=numpy.float32(1))
    damaged("doubles", 'data set "data": its values are not 32-bit', data=points(2).astype("float64"))
    damaged("integers", 'data set "data": its values are not 32-bit', data=numpy.ones((2, POINTS, 3), "int32"))
    damaged("float labels", 'data set "label": its values are not integers', label=numpy.ones((2, 1), "float32"))
    damaged("more labels", 'data set "label": its shape is [3, 1]; it should be [2, 1]', label=labels(3))
    damaged("wide labels", 'data set "label": its shape is [2, 2]', label=numpy.ones((2, 2), "uint8"))
    damaged("negative", 'data set "label": label -3 of cloud 1 is negative', label=numpy.array([[0], [-3]], "int8"))
    damaged("few points", 'data set "data": its clouds have 63 points, fewer than num_points = 64', data=points(2)[:, 1:])
    huge = {"shape": (2**40, POINTS, 3), "dtype": "float32", "chunks": (1, POINTS, 3), "compression": "gzip"}
    damaged("huge", 'data set "data": its header states 844424930131968 bytes of values', data=huge)
    # One large chunk, all of it zeros: a kilobyte in the file.
    chunk = {"shape": (2, POINTS, 3), "dtype": "float32", "chunks": (2**20, POINTS, 3), "maxshape": (None, POINTS, 3)}
    damaged("huge chunk", 'data set "data": its header states 805306368 bytes of values', data=chunk)
    classes = damaged("classes", 'data set "label": label 4 of cloud 0 is not one of the 4 classes',
                      label=numpy.array([[4], [0]], "uint8"))
    (classes / "shape_names.txt").write_text("\r\n".join(CLASSES))
    (damaged("text", "libhdf5: file signature not found") / "ply_data_train0.h5").write_text("no HDF5 file at all\n" * 100)
    (damaged("empty", "libhdf5: ") / "ply_data_train0.h5").write_bytes(b"")
    for kept in (0.3, 0.9, 0.999):
        path = damaged(f"cut {kept}", "") / "ply_data_train0.h5"
        path.write_bytes(path.read_bytes()[:int(path.stat().st_size * kept)])
    missing = damaged("missing", "") / "train_files.txt"
    missing.write_text("ply_data_train0.h5\nply_data_train7.h5\n")
    expected["missing"] = "ply_data_train7.h5: there is no such file"
    return expected


def drawn_number():
    value = draw.choice([0.0, 1.0, draw.uniform(-1, 1), draw.uniform(-1e4, 1e4), draw.randrange(-1000, 1000)])
    return draw.choice([str(value), repr(value), f"{value:.6f}", f"{value:e}", f"+{abs(value)}"])


def off_text(vertices, faces):
    """One of the ways in which the files are written."""
    counts = f"{len(vertices)} {len(faces)}" + draw.choice(["", " 0", " 7"])
    lines = [draw.choice(["OFF" + counts, "OFF " + counts, "OFF\n" + counts, "# a comment\n\nOFF # more\n" + counts])]
    for row in [*vertices, *faces]:
        gap = draw.choice([" ", " ", "  ", "\t"])
        lines.append(draw.choice(["", "", " "]) + gap.join(row) + draw.choice(["", "", " ", " # a comment", "\n", "\n\n# a line"]))
    ending = draw.choice(["\n", "\r\n"])
    return "\n".join(lines).replace("\n", ending) + draw.choice(["", ending])


def off_files(count):
    expected = {}
    for i in range(count):
        vertices = [[drawn_number() for _ in range(3)] for _ in range(draw.randrange(1, 30))]
        faces, triangles = [], []
        for _ in range(draw.randrange(1, 40)):
            corners = [draw.randrange(len(vertices)) for _ in range(draw.choice([3, 3, 3, 4, 5, 8, 2, 1]))]
            colors = draw.choice([[], [], ["255", "0", "0"], ["0.1", "0.2", "0.3", "1"]])
            faces.append([str(len(corners)), *map(str, corners), *colors])
            triangles += [[corners[0], corners[k], corners[k + 1]] for k in range(1, len(corners) - 1)]
        path = folder / f"mesh{i}.off"
        path.write_bytes(off_text(vertices, faces).encode())
        values = torch.tensor([[float(value) for value in row] for row in vertices])
        triangles = torch.tensor(triangles, dtype=torch.int64).reshape(-1, 3)
        expected[path.name] = {"vertices": values, "triangles": triangles, "seed": i, "points": sampled(values, triangles, i)}
    return expected


def sampled(vertices, triangles, seed):
    """The points of PyTorch Geometric's SamplePoints(50); None where the mesh has no area."""
    generator = torch.Generator().manual_seed(seed)
    largest = vertices.abs().max()
    corners = (vertices / largest)[triangles]
    first, second = corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]
    area = torch.linalg.cross(first, second).norm(p=2, dim=1).abs() / 2
    if not area.sum() > 0:
        return None
    chosen = torch.multinomial(area / area.sum(), 50, replacement=True, generator=generator)
    part = torch.rand(50, 2, generator=generator)
    folded = part.sum(dim=-1) > 1
    part[folded] = 1 - part[folded]
    return (corners[chosen, 0] + part[:, :1] * first[chosen] + part[:, 1:] * second[chosen]) * largest


def augmented(count):
    """The documented draws, from one generator."""
    cases = []
    for seed in range(count):
        cloud = torch.from_numpy(points(1)[0])
        generator = torch.Generator().manual_seed(seed)
        scale = torch.empty(3).uniform_(2 / 3, 3 / 2, generator=generator)
        shift = torch.empty(3).uniform_(-0.2, 0.2, generator=generator)
        shuffled = (cloud * scale + shift)[torch.randperm(POINTS, generator=generator)]
        centered = cloud - cloud.mean(0)
        cases.append({"points": cloud, "augmented": shuffled, "normalized": centered / centered.norm(dim=1).max()})
    return cases


if __name__ == "__main__":
    expected = {"published": write_published(folder / "published"), "damaged": damaged_files(), "off": off_files(60),
                "augmented": augmented(100), "classes": CLASSES}
    torch.save(expected, folder / "expected.pt")
