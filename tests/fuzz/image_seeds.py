# SPDX-License-Identifier: BSD-3-Clause
"""Writes small image files, each after a byte that chooses how to decode it: image_seeds.py <folder>"""
import io
import pathlib
import sys

import PIL.Image

FORMATS = [("JPEG", {}), ("JPEG", {"progressive": True}), ("JPEG", {"subsampling": 0}), ("PNG", {}), ("WEBP", {}),
           ("WEBP", {"lossless": True}), ("BMP", {})]
MODES = ["RGB", "L", "RGBA", "P", "1", "CMYK", "I;16"]


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    picture = PIL.Image.radial_gradient("L").resize((21, 18))
    exif = PIL.Image.Exif()
    exif[0x0112] = 6
    for number, (kind, options) in enumerate(FORMATS):
        for mode in MODES:
            file = io.BytesIO()
            try:
                picture.convert(mode).save(file, kind, **options, **({"exif": exif} if kind != "BMP" else {}))
            except (OSError, ValueError):
                continue  # the format does not have this mode
            for choice in (0, 8, 43):
                (folder / f"{number}_{mode.replace(';', '')}_{choice}").write_bytes(bytes([choice]) + file.getvalue())


main()
