# SPDX-License-Identifier: BSD-3-Clause
"""Writes a folder of pictures, and the samples that torchvision makes of it with a seed for each: folder_batches.py
<folder> <seed> <epochs>"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import torchvision_cpu  # noqa: E402, F401

import numpy  # noqa: E402
import PIL.Image  # noqa: E402
import torch  # noqa: E402
from sample_seeds import seed_of  # noqa: E402
from torchvision.datasets import ImageFolder  # noqa: E402
from torchvision.io import ImageReadMode, decode_image  # noqa: E402
from torchvision.transforms import v2  # noqa: E402

def write_pictures(folder):
    draw = numpy.random.default_rng(3)
    for number in range(30):
        height, width = draw.integers(20, 90, 2)
        noise = draw.integers(0, 256, (height // 4, width // 4, 3), dtype=numpy.uint8)
        picture = PIL.Image.fromarray(noise).resize((int(width), int(height)), PIL.Image.Resampling.BICUBIC)
        path = folder / f"class{number % 3}" / f"{number}.{'png' if number % 5 == 0 else 'jpg'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture.save(path)


def transform_of(kind):
    first = {
        "train": [v2.RandomResizedCrop(24), v2.RandomHorizontalFlip()],
        "crop": [v2.RandomCrop(15), v2.RandomVerticalFlip()],
        "evaluate": [v2.Resize(30), v2.CenterCrop(24)],
        "center": [v2.CenterCrop(40)],
    }
    return v2.Compose([*first[kind], v2.ToDtype(torch.float32, scale=True), v2.Normalize((0.4, 0.5, 0.6), (0.2, 0.3, 0.25))])


def main():
    folder, seed, epochs = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    write_pictures(folder / "pictures")
    results = {}
    for kind in ("train", "crop", "evaluate", "center"):
        dataset = ImageFolder(folder / "pictures", transform_of(kind), loader=lambda file: decode_image(file, ImageReadMode.RGB))
        for epoch in range(epochs):
            samples = []
            for index in range(len(dataset)):
                torch.manual_seed(seed_of(seed, epoch, 0, index))
                samples.append(dataset[index][0])
            results[f"{kind} {epoch}"] = torch.stack(samples)
    torch.save(results, folder / "batches.pt")


main()
