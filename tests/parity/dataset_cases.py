# SPDX-License-Identifier: BSD-3-Clause
"""dataset_cases.py FOLDER: writes files as NumPy and Python write them, and expected.pt with what is in them."""
import csv
import pathlib
import random
import sys

import numpy
import torch

folder = pathlib.Path(sys.argv[1])
draw = random.Random(20240302)
numbers = numpy.random.RandomState(20240302)

DTYPES = ["?", "i1", "u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8", "<c8", "<c16", ">i2", ">u4",
          ">i8", ">f2", ">f4", ">f8", ">c16"]


def drawn_array():
    shape = [draw.choice([0, 1, 2, 3, 5, 17]) if draw.random() < 0.1 else draw.randrange(1, 9)
             for _ in range(draw.randrange(5))]
    values = numbers.uniform(-100, 100, shape)
    dtype = numpy.dtype(draw.choice(DTYPES))
    values = numpy.abs(values) if dtype.kind == "u" else values + 1j * values if dtype.kind == "c" else values
    return numpy.asarray(values.astype(dtype), order=draw.choice("CF"))


def tensor_of(array):
    """Keeps the order, as a Fortran-ordered file does."""
    return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), order="K"))


def numpy_files(count):
    expected = {}
    for i in range(count):
        array = drawn_array()
        version = draw.choice([None, (1, 0), (2, 0), (3, 0)])
        with open(folder / f"array{i}.npy", "wb") as file:
            numpy.lib.format.write_array(file, array, version=version)
            if draw.random() < 0.2:
                file.write(b"another array could follow")
        expected[f"array{i}.npy"] = tensor_of(array)
    return expected


def npz_files(count):
    expected = {}
    for i in range(count):
        arrays = {draw.choice(["x", "y", "a/b", "long name of an array"]) + str(k): drawn_array()
                  for k in range(draw.randrange(1, 6))}
        (numpy.savez_compressed if i % 2 else numpy.savez)(folder / f"arrays{i}.npz", **arrays)
        expected[f"arrays{i}.npz"] = {name: tensor_of(array) for name, array in arrays.items()}
    return expected


def drawn_number():
    value = draw.choice([0.0, -0.0, 1.0, draw.uniform(-1, 1), draw.uniform(-1e30, 1e30), draw.randrange(-1000, 1000)])
    forms = [str(value), repr(value), f"{value:.3g}", f"{value:.20f}", f" {value}", f"+{abs(value)}", "nan", "-inf", "1e-30"]
    return draw.choice(forms[:6] if draw.random() < 0.9 else forms)


def csv_files(count):
    """Files that Python's csv module writes and reads back."""
    expected = {}
    names = ["cat", "dog, or wolf", 'the "best"', "two\nlines", "Zebra", "ähnlich", "1"]
    for i in range(count):
        columns = draw.randrange(2, 7)
        dialect = {"delimiter": draw.choice(",;\t|"), "lineterminator": draw.choice(["\n", "\r\n"]),
                   "quoting": draw.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC])}
        header, classes = draw.random() < 0.5, draw.random() < 0.5
        target = draw.randrange(columns)
        rows = [[drawn_number() for _ in range(columns)] for _ in range(draw.randrange(1, 30))]
        for row in rows:
            row[target] = draw.choice(names) if classes else row[target]
        path = folder / f"table{i}.csv"
        with open(path, "w", newline="", encoding=draw.choice(["utf-8", "utf-8-sig"])) as file:
            writer = csv.writer(file, **dialect)
            writer.writerows([[f"column {k}" for k in range(columns)]] * header + rows)
        with open(path, newline="", encoding="utf-8-sig") as file:
            read = list(csv.reader(file, delimiter=dialect["delimiter"]))[header:]
        found = sorted({row[target] for row in read}) if classes else []
        expected[path.name] = {
            "delimiter": dialect["delimiter"], "header": header, "target": target, "classes": found,
            "features": torch.tensor([[float(row[k]) for k in range(columns) if k != target] for row in read]),
            "targets": torch.tensor([found.index(row[target]) if classes else float(row[target]) for row in read]),
        }
    return expected


def token_files(count):
    """Windows as nanoGPT's get_batch() cuts them, at every position that it can draw."""
    expected = {}
    for i in range(count):
        dtype = draw.choice([numpy.uint16, numpy.uint32])
        tokens = numbers.randint(0, numpy.iinfo(dtype).max + 1, draw.randrange(2, 200), dtype=dtype)
        tokens.tofile(folder / f"tokens{i}.bin")
        block_size = draw.randrange(1, len(tokens))
        stride = draw.choice([1, block_size, draw.randrange(1, 50)])
        positions = range(0, len(tokens) - block_size, stride)
        expected[f"tokens{i}.bin"] = {
            "wide": dtype == numpy.uint32, "context_length": block_size, "stride": stride,
            "data": torch.stack([torch.from_numpy(tokens[k:k + block_size].astype(numpy.int64)) for k in positions]),
            "target": torch.stack([torch.from_numpy(tokens[k + 1:k + 1 + block_size].astype(numpy.int64)) for k in positions]),
        }
    return expected


if __name__ == "__main__":
    expected = {"npy": numpy_files(200), "npz": npz_files(30), "csv": csv_files(60), "tokens": token_files(60)}
    torch.save(expected, folder / "expected.pt")
