# SPDX-License-Identifier: BSD-3-Clause
"""Odd PNG files, for foreign_pictures.py."""
import io
import struct
import zlib

import numpy
import PIL.Image


def chunk(name, data, checksum=None):
    checksum = zlib.crc32(name + data) if checksum is None else checksum
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", checksum)


def png(*chunks):
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*each) for each in chunks)


def saved(image, **options):
    file = io.BytesIO()
    image.save(file, "PNG", **options)
    return file.getvalue()


def chunks_of(file):
    place = 8
    while place < len(file):
        size = struct.unpack(">I", file[place:place + 4])[0]
        yield file[place + 4:place + 8], file[place + 8:place + 8 + size]
        place += 12 + size


def plain(image):
    alpha = image.copy()
    alpha.putalpha(image.convert("L"))
    for data in (saved(image), saved(image.convert("L")), saved(image.quantize(4)), saved(image.quantize(200)),
                 saved(image, gamma=2.2), saved(image, dpi=(72, 72)), saved(image, compress_level=0)):
        yield "PNG", data
    for data in (saved(alpha), saved(alpha.convert("LA")), saved(image.convert("L"), transparency=3),
                 saved(image.quantize(4), transparency=1)):
        yield "PNG with alpha", data
    yield "PNG of one bit", saved(image.convert("1"))
    yield "PNG of 16 bits", saved(PIL.Image.fromarray(numpy.array(image.convert("L")).astype(numpy.uint16) * 257))
    yield "PNG, animated", saved(image, save_all=True, append_images=[image.rotate(180)], duration=100)


def of_other_ends(file):
    head, data, end = chunks_of(file)
    text = (b"tEXt", b"a\0b")
    yield "PNG without its end chunk", png(head, data)
    for cut in (11, 8, 5, 1):
        yield "PNG without its end chunk", file[:-cut]
    yield "PNG without its end chunk", png(head, data, text)
    yield "PNG with other bytes behind its end", file + b"more"
    yield "PNG with other bytes behind its end", file + file
    yield "PNG with a damaged end chunk", png(head, data, (b"IEND", b"", 1))
    yield "PNG with a damaged end chunk", png(head, data, (b"IEND", b"xx"))
    yield "PNG cut in a text behind its data", file[:-12] + struct.pack(">I", 100) + b"tEXtabc"
    for cut in (13, 14, 16):
        yield "PNG cut in the checksum of its data", file[:-cut]
    for cut in (25, 40, 60):
        yield "PNG cut in its data", file[:-cut]
    for cut in (9, 20, 35):
        yield "PNG cut in its header", file[:cut]


def of_other_chunks(file):
    head, data, end = chunks_of(file)
    packed = data[1]
    text = (b"tEXt", b"a\0b")
    yield "PNG with its data in pieces", png(head, *((b"IDAT", packed[i:i + 3]) for i in range(0, len(packed), 3)), end)
    yield "PNG with its data in pieces", png(head, (b"IDAT", b""), data, end)
    yield "PNG with a text between its data", png(head, (b"IDAT", packed[:20]), text, (b"IDAT", packed[20:]), end)
    yield "PNG with an unknown chunk", png(head, (b"abCd", b"x"), data, end)
    yield "PNG with an unknown critical chunk", png(head, (b"ABCD", b"x"), data, end)
    yield "PNG with a text before its header", png(text, head, data, end)
    yield "PNG with two headers", png(head, head, data, end)
    yield "PNG without data", png(head, end)
    yield "PNG with a damaged text", png(head, (b"tEXt", b"a\0b", 1), data, end)
    yield "PNG with a damaged header", png((b"IHDR", head[1], 1), data, end)
    for place, value, kind in ((8, 3, "an unknown depth"), (10, 1, "an unknown compression"), (11, 1, "an unknown filter method"),
                               (12, 2, "an unknown interlacing")):
        yield f"PNG with {kind}", png((b"IHDR", head[1][:place] + bytes([value]) + head[1][place + 1:]), data, end)
    for size in ((0, 4), (6, 0)):
        yield "PNG of no height or width", png((b"IHDR", struct.pack(">II", *size) + head[1][8:]), data, end)
    yield "PNG of more pixels than memory", png((b"IHDR", struct.pack(">II", 1 << 30, 1 << 30) + head[1][8:]), data, end)


def of_other_data(file):
    head, data, end = chunks_of(file)
    packed = data[1]
    raw = zlib.decompress(packed)
    row = 1 + 3 * 6

    def of(contents):
        return png(head, (b"IDAT", contents), end)

    yield "PNG with a wrong checksum of its data", png(head, (b"IDAT", packed, 1), end)
    yield "PNG without zlib's checksum", of(packed[:-4])
    yield "PNG with a wrong checksum of zlib", of(packed[:-4] + b"abcd")
    yield "PNG with more data than rows", of(zlib.compress(raw + b"123456"))
    yield "PNG with bytes behind zlib's data", of(packed + b"123")
    yield "PNG whose last row is short", of(zlib.compress(raw[:-3]))
    yield "PNG without its last row", of(zlib.compress(raw[:-row]))
    yield "PNG with an unknown filter", of(zlib.compress(b"\x09" + raw[1:]))
    for level in (0, 1, 9):
        yield "PNG", of(zlib.compress(raw, level))


def of_other_palettes(file):
    head, palette, *rest = chunks_of(file)
    yield "PNG with a color beyond the palette", png(head, (b"PLTE", palette[1][:6]), *rest)
    yield "PNG without its palette", png(head, *rest)
    yield "PNG with a palette of 7 bytes", png(head, (b"PLTE", palette[1][:7]), *rest)
    yield "PNG with two palettes", png(head, palette, palette, *rest)


def files(image):
    file = saved(image)
    yield from plain(image)
    yield from of_other_ends(file)
    yield from of_other_chunks(file)
    yield from of_other_data(file)
    yield from of_other_palettes(saved(image.quantize(4)))
