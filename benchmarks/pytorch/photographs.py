# SPDX-License-Identifier: BSD-3-Clause
"""Writes JPEG files with the detail of photographs, 10 classes: photographs.py <folder> <count> <width> <height> <quality>"""
import pathlib
import sys

import numpy
import PIL.Image

DRAWN_ONCE_IN = 8

def photograph(draw, width, height):
    """Noise at all scales, weaker at finer ones, as natural images have it."""
    image = numpy.zeros((height, width, 3), dtype=numpy.float32)
    scale = 2
    while scale <= max(width, height):
        rows, columns = -(-height // scale) + 1, -(-width // scale) + 1
        noise = PIL.Image.fromarray(draw.integers(0, 256, (rows, columns, 3), dtype=numpy.uint8))
        grown = noise.resize((columns * scale, rows * scale), PIL.Image.Resampling.BICUBIC)
        image += (numpy.asarray(grown, dtype=numpy.float32)[:height, :width] - 128) * scale ** 0.1
        scale *= 2
    image = (image - image.mean()) / image.std() * 55 + 120
    return image.clip(0, 255).astype(numpy.uint8)


def shifted(draw, image):
    """Another photograph at the cost of a copy, for photographs that take seconds to draw."""
    offsets = draw.integers(0, image.shape[0]), draw.integers(0, image.shape[1])
    return numpy.roll(image, offsets, axis=(0, 1))[:, :, draw.permutation(3)]


def main():
    folder, count, width, height, quality = pathlib.Path(sys.argv[1]), *map(int, sys.argv[2:])
    draw = numpy.random.default_rng(0)
    for number in range(count):
        if number % DRAWN_ONCE_IN == 0:
            drawn = photograph(draw, width, height)
        path = folder / f"class{number % 10}" / f"{number:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        PIL.Image.fromarray(shifted(draw, drawn)).save(path, quality=quality)


if __name__ == "__main__":
    main()
