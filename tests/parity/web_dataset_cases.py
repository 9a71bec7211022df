# SPDX-License-Identifier: BSD-3-Clause
"""Writes drawn shards, reads them with webdataset, and orders drawn shards with its shuffle buffer:
web_dataset_cases.py <folder>"""
import io
import pathlib
import random
import sys
import tarfile

import braceexpand
import torch
from webdataset.filters import _shuffle
from webdataset.tariterators import tarfile_samples

draw = random.Random(22)

FOLDERS = ["", "", "", "a/", "b.c/", "./", "a/.h/", "__meta__/", "é/", "d" * 90 + "/", "e" * 130 + "/" + "f" * 60 + "/"]
STEMS = ["1", "2", "3", "10", "A b", "", "__x__", "日本", "g" * 97, "h" * 240]
ENDS = [".jpg", ".cls", ".JPG", ".seg.png", ".tar.gz", ".", "", ".jpg.", "__"]
OTHERS = [tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE]


def contents():
    return draw.randbytes(draw.choice([0, 1, 5, 511, 512, 513, draw.randrange(3000)]))


def member_names():
    """Mostly samples of several files, in a folder; sometimes one of them again."""
    for _ in range(draw.randrange(6)):
        prefix = draw.choice(FOLDERS) + draw.choice(STEMS)
        for end in draw.sample(ENDS, draw.randrange(1, 4)):
            yield prefix + end
            if draw.random() < 0.02:
                yield prefix + end


def write_shard(path):
    kind = draw.choice([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
    headers = {"comment": "for all files"} if draw.random() < 0.3 else {}
    with tarfile.open(path, "w", format=kind, pax_headers=headers if kind == tarfile.PAX_FORMAT else None) as tar:
        folder = tarfile.TarInfo("a")  # webdataset refuses an archive without members
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        for name in member_names():
            info = tarfile.TarInfo(name or "x")
            if draw.random() < 0.1:
                info.type = draw.choice(OTHERS)
                info.linkname = draw.choice(["target", "t" * 200]) if info.type in OTHERS[1:3] else ""
            if kind == tarfile.PAX_FORMAT and draw.random() < 0.3:
                info.pax_headers = {"mtime": "1.5", "SCHILY.xattr.user.x": "a\nb\0c", "comment": "=" * draw.randrange(100)}
            data = contents() if info.isreg() else b""
            info.size = len(data)
            try:
                tar.addfile(info, io.BytesIO(data))
            except ValueError:
                continue  # ustar has no room for the name


def as_tensor(data):
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def grouped(paths):
    try:
        samples = list(tarfile_samples([{"url": str(path)} for path in paths]))
    except ValueError as error:
        return {"error": str(error)}
    fields = [{name: as_tensor(data) for name, data in sample.items() if not name.startswith("__")} for sample in samples]
    return {"keys": [sample["__key__"] for sample in samples], "urls": [sample["__url__"] for sample in samples],
            "fields": fields}


def shard_cases(folder, count):
    for case in range(count):
        paths = [folder / f"{case}-{number}.tar" for number in range(draw.randrange(1, 4))]
        for path in paths:
            write_shard(path)
        yield {"shards": [str(path) for path in paths]} | grouped(paths)


def draw_pattern(depth):
    if depth == 0 or draw.random() < 0.2:
        return draw.choice(["", "x", "1", "-", "a.tar"])
    kind = draw.randrange(4)
    if kind == 0:
        ends = [draw.choice(["0", "3", "07", "000", "-2", "-02", "12"]) for _ in range(2)]
        return "{" + "..".join(ends) + draw.choice(["", "", "..2", "..0", "..-3"]) + "}"
    parts = [draw_pattern(depth - 1) for _ in range(draw.randrange(1, 4))]
    if kind == 1:
        return "{" + ",".join(parts) + "}"
    return "".join(parts)


def pattern_cases(count):
    for pattern in (draw_pattern(3) for _ in range(count)):
        yield {"pattern": pattern, "names": list(braceexpand.braceexpand(pattern))}


class Draws:
    """What _shuffle asks of Python's random.Random."""

    def __init__(self, generator):
        self.generator = generator

    def randint(self, first, last):
        return first + torch.randint(last - first + 1, (), generator=self.generator).item()


def order_of(sizes, seed, buffer, pieces):
    generator = torch.Generator().manual_seed(seed)
    begins = [sum(sizes[:shard]) for shard in range(len(sizes))]
    samples = [begins[shard] + i for shard in torch.randperm(len(sizes), generator=generator).tolist()
               for i in range(sizes[shard])]
    order = {}
    begin = 0
    for piece in range(pieces):
        end = begin + len(samples) // pieces + (piece < len(samples) % pieces)
        shuffled = _shuffle(iter(samples[begin:end]), buffer, buffer, rng=Draws(generator))
        order |= {k * pieces + piece: sample for k, sample in enumerate(shuffled)}
        begin = end
    return [order[position] for position in range(len(samples))]


def order_cases(count):
    for _ in range(count):
        sizes = [draw.choice([0, 1, draw.randrange(60)]) for _ in range(draw.randrange(1, 8))] + [1]
        case = {"sizes": sizes, "seed": draw.randrange(1 << 40), "epoch": draw.randrange(5),
                "shuffle_buffer": draw.choice([1, 2, 7, 1000]), "pieces": draw.choice([1, 2, 3, 8])}
        yield case | {"order": order_of(sizes, case["seed"] + case["epoch"], case["shuffle_buffer"], case["pieces"])}


def main():
    folder = pathlib.Path(sys.argv[1])
    torch.save({"shards": list(shard_cases(folder, 250)), "patterns": list(pattern_cases(300)),
                "orders": list(order_cases(60))}, folder / "cases.pt")


main()
