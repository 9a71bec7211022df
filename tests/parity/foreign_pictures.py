# SPDX-License-Identifier: BSD-3-Clause
"""Odd pictures, for foreign_files.py."""
import io
import os
import resource
import struct

import numpy
import PIL.Image
import PIL.ImageOps
import torch
import torchvision.io

import foreign_bmp
import foreign_png
from foreign_values import Case, Described, described

PIXELS = numpy.random.default_rng(11).integers(0, 256, (4, 6, 3), numpy.uint8)
IMAGE = PIL.Image.fromarray(PIXELS)


def saved(image, kind, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def channels_first(image):
    return torch.from_numpy(numpy.array(image.convert("RGB"))).permute(2, 0, 1)


def by_pil(path):
    return channels_first(PIL.Image.open(path))


def write_decoded(files, target):
    for path, turned in files:
        try:
            text = described(torchvision.io.decode_image(str(path), "RGB", apply_exif_orientation=turned))
        except RuntimeError:
            text = "refused"
        print(text, file=target, flush=True)


def decoded_by_torchvision(files):
    """Described values, or None, of (path, turned). Its decoders crash on some damaged files, in a process of their own."""
    decoded = []
    while len(decoded) < len(files):
        source, target = os.pipe()
        child = os.fork()
        if child == 0:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            try:
                with open(target, "w") as file:
                    write_decoded(files[len(decoded):], file)
            finally:
                os._exit(0)
        os.close(target)
        with open(source) as file:
            decoded += [None if line == "refused\n" else line[:-1] for line in file]
        if os.waitpid(child, 0)[1] != 0:
            decoded.append(None)
    return decoded


def given(text):
    if text is None:
        raise RuntimeError("torchvision refuses it, or crashes")
    return Described(text)


def turned_by_pil(path):
    return channels_first(PIL.ImageOps.exif_transpose(PIL.Image.open(path)))


def tiff(order=b"II", magic=42, dtype=3, count=1, value=6, directory=8, entries=1):
    """The structure of EXIF with one entry, the orientation."""
    end = "<" if order[:1] == b"I" else ">"
    field = {1: "B3x", 3: "H2x", 6: "b3x", 8: "h2x", 9: "i"}.get(dtype, "I")
    return (order + struct.pack(end + "HIHHHI", magic, directory, entries, 0x0112, dtype, count)
            + struct.pack(end + field, value) + bytes(4))


ORIENTATIONS = {
    "EXIF orientation as SHORT": [tiff(value=value) for value in range(10)] + [tiff(b"MM")],
    "EXIF orientation as LONG": [tiff(dtype=4), tiff(b"MM", dtype=4), tiff(dtype=4, value=65542)],
    "EXIF orientation as SBYTE, SSHORT, SLONG or IFD": [tiff(dtype=dtype) for dtype in (6, 8, 9, 13)],
    "EXIF orientation as BYTE, ASCII or RATIONAL": [tiff(dtype=dtype) for dtype in (0, 1, 2, 5, 7)],
    "EXIF with two orientations": [tiff(count=2)],
    "EXIF with no orientation, or three": [tiff(count=0), tiff(count=3)],
    "EXIF that ends early": [tiff(entries=2), tiff(directory=4000), tiff()[:12], tiff()[:18], tiff()[:-4]],
}
NO_TIFF = [tiff(b"XX"), tiff(b"IX"), tiff(b"MX"), tiff(magic=43), tiff(magic=0), b"", b"I"]


def turned_pictures():
    for exif in ORIENTATIONS["EXIF orientation as SHORT"]:
        yield "EXIF orientation in a WebP file", saved(IMAGE, "WEBP", exif=exif, lossless=True)
    for kind, blocks in ORIENTATIONS.items():
        for exif in blocks:
            yield kind, saved(IMAGE, "JPEG", exif=b"Exif\0\0" + exif)
            yield kind, saved(IMAGE, "PNG", exif=exif)
    for exif in NO_TIFF:
        yield "EXIF without a TIFF header", saved(IMAGE, "JPEG", exif=b"Exif\0\0" + exif)


def jpeg_files():
    large = IMAGE.resize((40, 24), PIL.Image.Resampling.BICUBIC)
    jpeg = saved(large, "JPEG", quality=90)
    progressive = saved(large, "JPEG", progressive=True)
    gray = saved(large.convert("L"), "JPEG")
    for data in (jpeg, progressive, gray, saved(large, "JPEG", subsampling=0), saved(large, "JPEG", optimize=True),
                 saved(large, "JPEG", restart_marker_blocks=1), saved(large, "JPEG", comment=b"text", icc_profile=b"odd")):
        yield "JPEG", data
    for data in (saved(large.convert("CMYK"), "JPEG"), saved(large.convert("CMYK"), "JPEG", quality=100)):
        yield "JPEG in CMYK", data
    for data in (jpeg, progressive, gray):
        yield "JPEG with bytes behind its end", data + b"more"
        yield "JPEG with bytes behind its end", data + data
        for part in (0.3, 0.6, 0.9):
            yield "JPEG cut in its scan", data[:-2][:int(part * len(data))]
        for cut in (1, 2):
            yield "JPEG without its end marker", data[:-cut]
        yield "JPEG with bytes before its beginning", b"\n" + data
    for cut in (2, 3, 11, 21, 100):
        yield "JPEG cut in its header", jpeg[:cut]
    height = jpeg.index(b"\xff\xc0") + 5
    for size in (b"\0\0\0\x28", b"\0\x18\0\0"):
        yield "JPEG of no height or width", jpeg[:height] + size + jpeg[height + 4:]
    tables = jpeg.index(b"\xff\xc4")
    yield "JPEG without its Huffman tables", jpeg[:tables] + jpeg[jpeg.index(b"\xff\xda"):]
    yield "JPEG without its quantization tables", jpeg[:jpeg.index(b"\xff\xdb")] + jpeg[jpeg.index(b"\xff\xc0"):]
    yield "JPEG with an unknown marker", jpeg[:2] + b"\xff\xef\0\4ab" + jpeg[2:]
    yield "JPEG with filling before a marker", jpeg[:2] + b"\xff\xff\xff" + jpeg[2:]
    for place in (-40, -60, -100):
        yield "JPEG with damaged pixels", jpeg[:place] + bytes([jpeg[place] ^ 0x55]) + jpeg[place + 1:]


def webp_files():
    alpha = IMAGE.copy()
    alpha.putalpha(IMAGE.convert("L"))
    plain = saved(IMAGE, "WEBP", lossless=True)
    for data in (plain, saved(IMAGE, "WEBP", quality=80), saved(IMAGE, "WEBP", lossless=True, icc_profile=b"odd")):
        yield "WebP", data
    for data in (saved(alpha, "WEBP", lossless=True, exact=True), saved(alpha, "WEBP", quality=80)):
        yield "WebP with alpha", data
    yield "WebP, animated", saved(IMAGE, "WEBP", save_all=True, append_images=[IMAGE.rotate(180)], duration=100)
    for part in (0.1, 0.5, 0.9):
        yield "WebP cut short", plain[:int(part * len(plain))]
    yield "WebP with bytes behind its end", plain + b"more"
    yield "WebP with a wrong size in its header", plain[:4] + struct.pack("<I", 9) + plain[8:]


def other_files():
    for kind in ("GIF", "TIFF", "PPM", "ICO", "TGA", "PCX"):
        yield f"picture in the format {kind}", saved(IMAGE, kind)
    for data in (b"", b"\n", b"no picture\n", b"\xff\xd8", b"\x89PNG\r\n\x1a\n", b"BM", b"RIFF\x10\0\0\0WEBP", b"<svg/>"):
        yield "no picture", data


def all_files():
    """(how to read it, kind, its bytes, whether torchvision has the format)"""
    for how, has_torchvision, files in (("turned picture", True, turned_pictures()), ("picture", True, foreign_png.files(IMAGE)),
                                        ("picture", True, jpeg_files()), ("picture", True, webp_files()),
                                        ("picture", False, foreign_bmp.files()), ("picture", False, other_files())):
        for kind, data in files:
            yield how, kind, data, has_torchvision


def cases(folder):
    in_torchvision = []
    for number, (how, kind, data, has_torchvision) in enumerate(all_files()):
        path = folder / f"picture{number}"
        path.write_bytes(data)
        turned = how == "turned picture"
        yield Case(kind, "PIL", how, path, lambda: turned_by_pil(path) if turned else by_pil(path))
        if has_torchvision:
            in_torchvision.append((kind, how if turned else "picture of all bits", path, turned))
    decoded = decoded_by_torchvision([(path, turned) for _, _, path, turned in in_torchvision])
    for (kind, how, path, _), text in zip(in_torchvision, decoded, strict=True):
        yield Case(kind, "torchvision", how, path, lambda: given(text))
