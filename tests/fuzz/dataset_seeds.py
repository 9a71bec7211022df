# SPDX-License-Identifier: BSD-3-Clause
"""Writes small files of datasets, each after a byte that chooses the reader and its options: dataset_seeds.py <folder>"""
import gzip
import io
import pathlib
import struct
import sys

import numpy

READERS = {"npy": 0, "npz": 1, "csv": 2, "idx": 3, "index": 4, "whole_index": 5}
DTYPES = ["?", "i1", "u1", "<i2", ">u2", "<i4", "<u8", "<f2", ">f4", "<f8", ">c8", "<c16", "S3"]
CSV_TEXTS = [
    "a,b,target\n1,2,3\n4,5.5,6\n",
    '"a","b ""c""",t\r\n1e3,-2,cat\r\n\r\n nan ,+inf,"dog\r\nand cat"\r\n',
    "1;2;3\n4;5;6",
    "\ufeff1\t2\t0\n3 4 5\n1,,2\n",
]


def saved(save, *arguments, **arrays):
    file = io.BytesIO()
    save(file, *arguments, **arrays)
    return file.getvalue()


def arrays():
    for dtype in DTYPES:
        yield numpy.arange(12).reshape(3, 4).astype(dtype)
    yield numpy.asfortranarray(numpy.ones((2, 3, 4), "<f4"))
    yield numpy.float32(3)
    yield numpy.ones((0, 5))


def idx(code, width, dims):
    values = bytes(range(width * int(numpy.prod(dims))))
    return bytes([0, 0, code, len(dims)]) + struct.pack(f">{len(dims)}I", *dims) + values


def text(value):
    return struct.pack("<Q", len(value)) + value


def folder_index():
    """As src/kit/data/folder_listing.cpp writes it, without the checksum."""
    def texts(values):
        return struct.pack("<Q", len(values)) + b"".join(map(text, values))

    times = [(b"", 5), (b"cat", 6), (b"dog", 7)]
    folders = [(b"cat", 0), (b"dog", 1)]
    parts = [
        b"lockstep folder index 2\n", texts([b".png", b".jpg"]), b"\1",
        struct.pack("<Q", len(times)) + b"".join(text(path) + struct.pack("<q", time) for path, time in times),
        texts([b"cat", b"dog"]),
        struct.pack("<Q", len(folders)) + b"".join(text(path) + struct.pack("<q", target) for path, target in folders),
        text(b"1.png2.png3.jpg"), struct.pack("<4Q", 3, 5, 10, 15), struct.pack("<Q3I", 3, 0, 0, 1),
    ]
    return b"".join(parts)


def files():
    for array in arrays():
        yield "npy", saved(numpy.save, array)
    some = {"data": numpy.ones((3, 2)), "target": numpy.arange(3)}
    yield "npz", saved(numpy.savez, **some)
    yield "npz", saved(numpy.savez_compressed, **some)
    for code, width in ((0x08, 1), (0x09, 1), (0x0b, 2), (0x0c, 4), (0x0d, 4), (0x0e, 8)):
        for dims in ((5,), (2, 3, 2), (0, 3)):
            yield "idx", idx(code, width, dims)
    yield "idx", gzip.compress(idx(0x08, 1, (4, 3)))
    yield "index", folder_index()
    yield "whole_index", folder_index()


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for number, (reader, contents) in enumerate(files()):
        (folder / f"{reader}_{number}").write_bytes(bytes([READERS[reader]]) + contents)
    for number, contents in enumerate(CSV_TEXTS):
        for options in range(16):
            choice = READERS["csv"] + len(READERS) * options
            (folder / f"csv_{number}_{options}").write_bytes(bytes([choice]) + contents.encode())
    (folder / "csv_gzip").write_bytes(bytes([READERS["csv"] + len(READERS) * 2]) + gzip.compress(CSV_TEXTS[0].encode()))


main()
