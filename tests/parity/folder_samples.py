# SPDX-License-Identifier: BSD-3-Clause
"""Writes a folder of pictures, and the samples that torchvision makes of it: folder_samples.py <folder>"""
import pathlib
import struct
import sys
import zlib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import torchvision_cpu  # noqa: E402, F401

import numpy  # noqa: E402
import PIL.Image  # noqa: E402
import torch  # noqa: E402
from torchvision.datasets import ImageFolder  # noqa: E402
from torchvision.io import ImageReadMode, decode_image  # noqa: E402
from torchvision.transforms import v2  # noqa: E402

COLOR_TYPES = {1: 0, 2: 4, 3: 2, 4: 6}  # of a PNG file, by its channels


def chunk(name, contents):
    return struct.pack(">I", len(contents)) + name + contents + struct.pack(">I", zlib.crc32(name + contents))


def wide_png(pixels):
    """PIL writes 16 bits per channel for gray only."""
    height, width, channels = pixels.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", width, height, 16, COLOR_TYPES[channels], 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def write_pictures(folder):
    draw = numpy.random.default_rng(8)
    (folder / "turned").mkdir(parents=True)
    (folder / "wide").mkdir()
    for orientation in range(1, 9):
        exif = PIL.Image.Exif()
        exif[0x0112] = orientation
        for extension in ("jpg", "png"):
            pixels = draw.integers(0, 256, (23, 31, 3), dtype=numpy.uint8)
            PIL.Image.fromarray(pixels).save(folder / "turned" / f"{orientation}.{extension}", exif=exif)
    for channels in COLOR_TYPES:
        pixels = draw.integers(0, 1 << 16, (23, 31, channels)).astype(numpy.uint16)
        (folder / "wide" / f"{channels}.png").write_bytes(wide_png(pixels))


def loader(turned):
    def load(file):
        image = decode_image(file, ImageReadMode.RGB, apply_exif_orientation=turned)
        return v2.functional.to_dtype(image, torch.uint8, scale=True)
    return load


def main():
    folder = pathlib.Path(sys.argv[1])
    write_pictures(folder / "pictures")
    samples = {}
    for turned in (False, True):
        for suffix, transform in (("", None), (" cropped", v2.CenterCrop(14))):
            dataset = ImageFolder(folder / "pictures", transform, loader=loader(turned))
            samples[("turned" if turned else "stored") + suffix] = [sample for sample, _ in dataset]
    torch.save(samples, folder / "samples.pt")


main()
