# SPDX-License-Identifier: BSD-3-Clause
"""Odd files of NumPy, for foreign_files.py."""
import io
import struct
import zipfile

import numpy
import numpy.lib.format
import torch

from foreign_values import Case

MATRIX = numpy.arange(6.0).reshape(2, 3)
DTYPES = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16"]


def saved(array):
    file = io.BytesIO()
    numpy.save(file, array, allow_pickle=True)
    return file.getvalue()


def of_version(array, version):
    file = io.BytesIO()
    numpy.lib.format.write_array(file, array, version=version)
    return file.getvalue()


def of(header, data=MATRIX.tobytes(), version=1):
    text = (header if isinstance(header, str) else repr(header)).encode("latin1")
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", len(text)) + text + data


def header(**changes):
    return {"descr": "<f8", "fortran_order": False, "shape": (2, 3)} | changes


WHOLE = saved(MATRIX)
PAIR = numpy.dtype([("a", "<i4"), ("b", "<f4")])

FILES = {
    "array": [saved(MATRIX.astype(dtype)) for dtype in DTYPES]
             + [saved(array) for array in (MATRIX.T, MATRIX[:, ::2], MATRIX[::-1], numpy.float64(3), numpy.empty((0, 3)), numpy.empty(0),
                                           numpy.ones((1,) * 32), numpy.arange(24).reshape(2, 3, 4).transpose(2, 0, 1))]
             + [of_version(MATRIX, version) for version in ((1, 0), (2, 0), (3, 0))],
    "array of big-endian numbers": [saved(MATRIX.astype(">" + dtype)) for dtype in DTYPES[3:]],
    "array with another header": [of(text) for text in (header(), header(descr="=f8"), header(descr="f8"), str(header()) + " " * 40 + "\n",
                                                        str(header()).replace("'", '"'), str(header())[:-1] + ",}",
                                                        "{'shape':(2,3),'descr':'<f8','fortran_order':False}")],
    "array with odd texts in its header": [of(text) for text in (str(header()).replace("(2, 3)", "[2, 3]"),
                                                                 str(header()).replace("False", "0"), str(header()) + "#",
                                                                 str(header()).replace("2, 3", "True, 3"), "\n" + str(header()),
                                                                 "{'descr': '<f8', 'fortran_order': False, 'shape': (2, 0x3)}")],
    "array of Python 2": [of(str(header()).replace("2, 3", "2L, 3L"))],
    "array with a damaged header": [of(text) for text in ("", "{", "{}", "x", str(header())[:-5], header(shape=6), header(shape=(-2, 3)),
                                                          header(shape=(2.0, 3)), header(descr=""), header(descr="<f9"), header(more=1),
                                                          {"descr": "<f8", "shape": (2, 3)})],
    "array of texts, times or objects": [saved(numpy.array(value)) for value in
                                         (["a", "b"], [b"a", b"b"], [None, 1], numpy.datetime64("2020-01-01"), numpy.timedelta64(3))],
    "array of records": [saved(numpy.zeros(3, PAIR)), saved(numpy.zeros((2, 2), [("x", "<f8", (2,))]))],
    "array of an odd dtype": [saved(MATRIX.astype("longdouble")), of(header(descr="|V8")), of(header(descr="<i3"))],
    "array with bytes behind its end": [WHOLE + b"more"],
    "array cut short": [WHOLE[:count] for count in (0, 5, 6, 7, 9, 60, len(WHOLE) - 1)],
    "array of impossible size": [of(header(shape=(1 << 40, 1 << 40))), of(header(shape=(1 << 62,)))],
    "array of an unknown version": [of(header(), version=version) for version in (0, 4, 9)],
    "no array": [b"no array\n", b"\x80\x04N.", bytes(100)],
}


def packed(arrays, compression=zipfile.ZIP_STORED):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, data in arrays:
            archive.writestr(name, data)
    return file.getvalue()


def archive(save, **arrays):
    file = io.BytesIO()
    save(file, **arrays)
    return file.getvalue()


def damaged(data):
    place = data.index(MATRIX.tobytes())
    return data[:place] + b"\1" + data[place + 1:]


ARCHIVES = {
    "archive of arrays": [archive(numpy.savez, a=MATRIX, b=MATRIX.T), archive(numpy.savez_compressed, a=MATRIX, b=MATRIX.astype("i2")),
                          archive(numpy.savez), archive(numpy.savez, **{"a/b": MATRIX, "\u65e5": MATRIX}),
                          packed([("a.npy", WHOLE)], zipfile.ZIP_DEFLATED)],
    "archive of arrays with bytes at an end": [archive(numpy.savez, a=MATRIX) + b"more"],
    "archive of arrays with bytes at its beginning": [b"more" + archive(numpy.savez, a=MATRIX)],
    "archive with other compression": [packed([("a.npy", WHOLE)], method) for method in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)],
    "archive with other files": [packed([("a.npy", WHOLE), ("b.txt", b"text")])],
    "archive with an array named otherwise": [packed([("a", WHOLE)])],
    "archive with a damaged array": [damaged(archive(numpy.savez, a=MATRIX)), packed([("a.npy", WHOLE[:-1])])],
    "archive with texts": [archive(numpy.savez, a=numpy.array(["a"]))],
    "archive cut short": [archive(numpy.savez, a=MATRIX)[:count] for count in (10, 100, 300, -1)],
}


def as_tensor(array):
    if array.dtype.kind not in "biufc":
        raise ValueError(f"torch has no tensor of {array.dtype}")
    return torch.from_numpy(numpy.array(array, dtype=array.dtype.newbyteorder("="), order="C"))


def array_of(path):
    return as_tensor(numpy.load(path))


def arrays_of(path):
    with numpy.load(path) as arrays:
        return {name: as_tensor(arrays[name]) for name in sorted(arrays.files)}


def cases(folder):
    for how, ending, read, kinds in (("array", "npy", array_of, FILES), ("archive of arrays", "npz", arrays_of, ARCHIVES)):
        for kind, files in kinds.items():
            for number, data in enumerate(files):
                path = folder / f"{kind.replace(' ', '_')}{number}.{ending}"
                path.write_bytes(data)
                yield Case(kind, "numpy", how, path, lambda: read(path))
