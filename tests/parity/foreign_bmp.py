# SPDX-License-Identifier: BSD-3-Clause
"""Odd BMP files, for foreign_pictures.py. torchvision reads none."""
import struct

PALETTE = bytes(range(16))
ROWS = bytes([0, 1, 2, 3, 3, 2, 1, 0])


def bmp(bits, width, height, rows, palette=b"", colors=0, compression=0, size=40, more=b"", place=None, planes=1):
    if size == 12:
        header = struct.pack("<IHHHH", 12, width, height, planes, bits)
    else:
        header = struct.pack("<IiiHHIIiiII", size, width, height, planes, bits, compression, 0, 0, 0, colors, 0)
    place = 14 + len(header) + len(more) + len(palette) if place is None else place
    return b"BM" + struct.pack("<IHHI", 0, 0, 0, place) + header + more + palette + rows


def masks(*values):
    return struct.pack(f"<{len(values)}I", *values)


def of_palettes():
    for bits, rows in ((8, bytes([0, 1, 2, 9, 3, 2, 1, 0])), (4, bytes([0x01, 0x2F, 0, 0, 0x32, 0x10, 0, 0]))):
        yield "BMP with a color beyond the palette", bmp(bits, 4, 2, rows, PALETTE, colors=4)
    one_bit = bytes([0x50, 0, 0, 0, 0xA0, 0, 0, 0])
    yield "BMP with a color beyond the palette", bmp(1, 4, 2, one_bit, PALETTE[:4], colors=1)
    yield "BMP", bmp(1, 4, 2, one_bit, PALETTE[:8], colors=2)
    yield "BMP", bmp(8, 4, 2, ROWS, PALETTE, colors=4)
    yield "BMP", bmp(8, 4, -2, ROWS, PALETTE, colors=4)
    yield "BMP", bmp(8, 4, 2, ROWS, bytes(range(256)) * 3, size=12)
    yield "BMP with a palette of 300 colors", bmp(8, 4, 2, ROWS, bytes(1200), colors=300)
    yield "BMP whose palette reaches into its pixels", bmp(8, 4, 2, ROWS, PALETTE)
    yield "BMP whose pixels begin in its palette", bmp(8, 4, 2, ROWS, PALETTE, colors=4, place=60)
    yield "BMP with gray beyond the palette", bmp(8, 4, 2, bytes([0, 1, 2, 9, 3, 2, 1, 0]), bytes([0, 0, 0, 0, 255, 255, 255, 0]),
                                                  colors=2)


def of_colors():
    pixels = bytes(range(8))
    high = bytes([0x1F, 0x7C, 0xE0, 3] * 2)
    yield "BMP", bmp(24, 1, 2, pixels)
    yield "BMP", bmp(24, 1, 2, pixels, size=12)
    yield "BMP", bmp(32, 1, 2, pixels)
    yield "BMP", bmp(32, 1, 2, pixels, compression=3, more=masks(0xFF0000, 0xFF00, 0xFF))
    yield "BMP", bmp(24, 1, 2, pixels, planes=3)
    for size, more in ((52, masks(0xFF0000, 0xFF00, 0xFF)), (56, masks(0xFF0000, 0xFF00, 0xFF, 0xFF000000)),
                       (108, masks(0xFF0000, 0xFF00, 0xFF, 0) + bytes(52)), (124, masks(0xFF0000, 0xFF00, 0xFF, 0) + bytes(68))):
        yield "BMP with a longer header", bmp(32, 1, 2, pixels, compression=3, size=size, more=more)
    yield "BMP with a longer header", bmp(24, 1, 2, pixels, size=64, more=bytes(24))
    yield "BMP with an alpha mask, but no masks", bmp(32, 1, 2, pixels, size=56, more=masks(0xFF0000, 0xFF00, 0xFF, 0xFF000000))
    yield "BMP of 16 bits", bmp(16, 2, 2, high)
    for colors in ((0xF800, 0x7E0, 0x1F), (0x7C00, 0x3E0, 0x1F)):
        yield "BMP of 16 bits", bmp(16, 2, 2, high, compression=3, more=masks(*colors))
    for colors in ((0xFF, 0xFF00, 0xFF0000), (0x3FF, 0xFFC00, 0x3FF00000)):
        yield "BMP with other masks", bmp(32, 1, 2, pixels, compression=3, more=masks(*colors))
    yield "BMP with other masks", bmp(24, 1, 2, pixels, compression=3, more=bytes(12))


def of_other_forms():
    pixels = bytes(range(8))
    yield "BMP with run lengths", bmp(8, 4, 2, bytes([4, 1, 0, 0, 0, 4, 0, 1, 2, 3, 0, 0, 0, 1]), PALETTE, 4, 1)
    yield "BMP with run lengths", bmp(8, 4, 2, bytes([2, 1, 0, 2, 1, 1, 1, 2, 0, 1]), PALETTE, 4, 1)
    yield "BMP with run lengths", bmp(4, 4, 2, bytes([4, 0x12, 0, 0, 0, 4, 1, 0x23, 0, 0, 0, 1]), PALETTE, 4, 2)
    yield "BMP with run lengths that end early", bmp(8, 4, 2, bytes([4, 1, 0, 1]), PALETTE, 4, 1)
    yield "BMP with a JPEG file inside", bmp(24, 1, 2, pixels, compression=4)
    yield "BMP of 2 bits", bmp(2, 4, 2, bytes(8), PALETTE, colors=4)
    yield "BMP of a negative width", bmp(8, -4, 2, ROWS, PALETTE, colors=4)
    yield "BMP of no height or width", bmp(24, 0, 2, b"")
    yield "BMP of no height or width", bmp(24, 2, 0, b"")
    yield "BMP with an unknown header", bmp(24, 1, 2, pixels, size=41, more=bytes(1))
    yield "BMP with an unknown header", bmp(24, 1, 2, pixels, size=16)
    yield "BMP with a gap before its pixels", bmp(24, 1, 2, b"12345678" + pixels, place=62)
    yield "BMP that does not say where its pixels begin", bmp(24, 1, 2, pixels, place=0)
    yield "BMP with bytes behind its end", bmp(24, 1, 2, pixels + b"more")
    yield "BMP cut in the filling of its last row", bmp(24, 1, 2, pixels[:7])
    yield "BMP cut in the filling of its last row", bmp(24, 3, 2, bytes(range(21)))
    for count in (6, 3, 0):
        yield "BMP cut short", bmp(24, 1, 2, pixels[:count])
    for cut in (3, 14, 20, 40):
        yield "BMP cut short", bmp(24, 1, 2, pixels)[:cut]


def files():
    yield from of_palettes()
    yield from of_colors()
    yield from of_other_forms()
