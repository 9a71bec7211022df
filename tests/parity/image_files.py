# SPDX-License-Identifier: BSD-3-Clause
"""Writes image files into a folder, and what torchvision or PIL decodes from them: image_files.py <folder>

decoded.pt maps "<file>|<mode>" to torchvision's tensor, or to its error's text. Names that begin with "pil", and
WebP files with an orientation, are decoded by PIL, where torchvision reads no such files or not what they show.
"""
import pathlib
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import torchvision_cpu  # noqa: E402, F401

import numpy  # noqa: E402
import PIL.Image  # noqa: E402
import PIL.ImageOps  # noqa: E402
import torch  # noqa: E402
import torchvision.io  # noqa: E402
import torchvision.utils  # noqa: E402

MODES = {"unchanged": "UNCHANGED", "gray": "GRAY", "gray_alpha": "GRAY_ALPHA", "rgb": "RGB", "rgb_alpha": "RGB_ALPHA"}
PIL_MODES = {"gray": "L", "rgb": "RGB", "rgb_alpha": "RGBA"}
SIZES = [(1, 1), (1, 9), (8, 8), (17, 31), (33, 16), (64, 50)]


def photograph(generator, height, width):
    """Smooth shapes and noise, as a photograph has."""
    y, x = numpy.mgrid[0:height, 0:width]
    waves = [numpy.sin(x / generator.uniform(3, 40) + y / generator.uniform(3, 40) + c) for c in range(3)]
    noise = generator.normal(0, 0.1, (height, width, 3))
    return ((numpy.stack(waves, -1) + noise + 1.5) / 3 * 255).clip(0, 255).astype(numpy.uint8)


def jpeg_files(image, save):
    for quality, subsampling in ((90, 0), (75, 1), (60, 2)):
        save(f"q{quality}_s{subsampling}.jpg", image, quality=quality, subsampling=subsampling)
    save("progressive.jpg", image, progressive=True)
    save("gray.jpg", image.convert("L"))
    save("cmyk.jpg", image.convert("CMYK"))


def png_files(image, save):
    alpha = PIL.Image.fromarray(numpy.array(image)[:, :, 0])
    rgba = image.copy()
    rgba.putalpha(alpha)
    save("rgb.png", image)
    save("rgba.png", rgba)
    save("gray.png", image.convert("L"))
    save("gray_alpha.png", rgba.convert("LA"))
    save("pil_one_bit.png", image.convert("1"))  # torchvision gives it an alpha of 1
    save("gray_key.png", image.convert("L"), transparency=3)
    save("wide.png", PIL.Image.fromarray(numpy.array(image.convert("L")).astype(numpy.uint16) * 257 + 3))
    for colors in (2, 9, 200):
        save(f"pil_palette{colors}.png", image.quantize(colors))
        save(f"pil_palette{colors}_key.png", image.quantize(colors), transparency=1)


def other_files(image, save):
    rgba = image.copy()
    rgba.putalpha(image.convert("L"))
    save("lossless.webp", image, lossless=True)
    save("lossy.webp", image, quality=80)
    save("alpha.webp", rgba, lossless=True)
    save("pil_rgb.bmp", image)
    save("pil_rgba.bmp", rgba)
    save("pil_gray.bmp", image.convert("L"))
    save("pil_palette.bmp", image.quantize(100))
    save("pil_one_bit.bmp", image.convert("1"))


def by_torchvision(path, mode, **options):
    try:
        return torchvision.io.decode_image(str(path), MODES[mode], **options)
    except RuntimeError as error:
        return str(error)


def by_pil(path, mode):
    image = PIL.Image.open(path)
    if mode not in PIL_MODES:
        return "not asked"
    pixels = torch.from_numpy(numpy.array(image.convert(PIL_MODES[mode])))
    return pixels.reshape(pixels.shape[0], pixels.shape[1], -1).permute(2, 0, 1)


def turned_by_pil(path):
    pixels = numpy.array(PIL.ImageOps.exif_transpose(PIL.Image.open(path)).convert("RGB"))
    return torch.from_numpy(pixels).permute(2, 0, 1)


def without_exif_flag(webp):
    return webp[:20] + bytes([webp[20] & ~8]) + webp[21:]


def with_exif_prefix(webp):
    """Some programs write the six bytes that precede EXIF data in a JPEG file."""
    place = webp.rindex(b"EXIF")
    contents = b"Exif\0\0" + webp[place + 8:]
    file = webp[:place] + b"EXIF" + struct.pack("<I", len(contents)) + contents
    return file[:4] + struct.pack("<I", len(file) - 8) + file[8:]


def turned_webp_files(image, folder, exif):
    orientation = exif[0x0112]
    path = folder / f"turned{orientation}.webp"
    # The profile makes a chunk of an odd size before that of EXIF.
    image.save(path, exif=exif, icc_profile=b"odd", lossless=orientation % 2 == 0)
    yield path
    for name, change in (("unflagged", without_exif_flag), ("prefixed", with_exif_prefix)):
        changed = folder / f"turned{orientation}_{name}.webp"
        changed.write_bytes(change(path.read_bytes()))
        yield changed


def encoded(image):
    return {"jpeg": torchvision.io.encode_jpeg(image, quality=80), "png": torchvision.io.encode_png(image)}


def main():
    folder = pathlib.Path(sys.argv[1])
    generator = numpy.random.default_rng(5)
    decoded = {}
    for height, width in SIZES:
        image = PIL.Image.fromarray(photograph(generator, height, width))

        def save(name, picture, **options):
            stem = f"{height}x{width}_"
            path = folder / (("pil_" + stem + name[4:]) if name.startswith("pil_") else stem + name)
            picture.save(path, **options)
            for mode in MODES:
                decode = by_pil if name.startswith("pil_") else by_torchvision
                decoded[f"{path.name}|{mode}"] = decode(path, mode)

        jpeg_files(image, save)
        png_files(image, save)
        other_files(image, save)
    image = PIL.Image.fromarray(photograph(generator, 21, 34))
    for orientation in range(1, 9):
        exif = PIL.Image.Exif()
        exif[0x0112] = orientation
        for extension in ("jpg", "png"):
            path = folder / f"turned{orientation}.{extension}"
            image.save(path, exif=exif)
            decoded[f"{path.name}|turned"] = by_torchvision(path, "rgb", apply_exif_orientation=True)
        for path in turned_webp_files(image, folder, exif):
            decoded[f"{path.name}|turned"] = turned_by_pil(path)
    image.resize((300, 211)).save(folder / "large.jpg", subsampling=2)

    batch = torch.rand(7, 3, 5, 6, generator=torch.Generator().manual_seed(1))
    grids = {
        "batch": batch,
        "default": torchvision.utils.make_grid(batch),
        "columns": torchvision.utils.make_grid(batch, nrow=3, padding=1, pad_value=0.5),
        "normalized": torchvision.utils.make_grid(batch, normalize=True, scale_each=True),
        "range": torchvision.utils.make_grid(batch, normalize=True, value_range=(0.2, 0.7)),
        "gray": torchvision.utils.make_grid(batch[:, :1]),
        "single": torchvision.utils.make_grid(batch[0, 0]),
    }
    torchvision.utils.save_image(batch, folder / "saved_by_python.png")
    shifted = batch * 4 - 2  # as by Normalize(0.5, 0.25)
    torchvision.utils.save_image(shifted, folder / "normalized_by_python.png", nrow=3, padding=1, normalize=True, pad_value=1)
    torchvision.utils.save_image(shifted, folder / "range_by_python.png", normalize=True, value_range=(0, 1))
    torchvision.io.write_png(torchvision.utils.make_grid((batch * 255).byte(), nrow=2), str(folder / "bytes_by_python.png"))
    pixels = torch.from_numpy(photograph(generator, 19, 23)).permute(2, 0, 1).contiguous()
    torch.save({"decoded": decoded, "grids": grids, "pixels": pixels, "encoded": encoded(pixels)}, folder / "oracle.pt")


main()
