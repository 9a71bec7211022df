# SPDX-License-Identifier: BSD-3-Clause
"""The Python counterpart of images.cpp: torchvision's ImageFolder and Python's DataLoader, with processes as workers."""
import argparse
import json
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests/support"))
import torchvision_cpu  # noqa: E402, F401

import torch  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402
from torchvision.datasets import ImageFolder  # noqa: E402
from torchvision.io import ImageReadMode, decode_image  # noqa: E402
from torchvision.transforms import v2  # noqa: E402

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def folder(path, kind):
    """By PIL, or by torchvision's decoder with transforms of uint8 tensors."""
    convert = [v2.PILToTensor()] if kind == "pil" else []
    transform = v2.Compose([v2.RandomResizedCrop(224), v2.RandomHorizontalFlip(), *convert,
                            v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])
    if kind == "pil":
        return ImageFolder(path, transform)
    return ImageFolder(path, transform, loader=lambda file: decode_image(file, ImageReadMode.RGB))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--kind", choices=["pil", "tensor"], default="pil")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--passes", type=int, default=2)
    flags = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    start = time.perf_counter()
    dataset = folder(flags.folder, flags.kind)
    opening = time.perf_counter() - start
    loader = DataLoader(dataset, flags.batch_size, shuffle=True, num_workers=flags.workers,
                        persistent_workers=flags.workers > 0)
    rates = []
    for _ in range(flags.passes):
        start = time.perf_counter()
        samples = sum(len(target) for _, target in loader)
        rates.append(samples / (time.perf_counter() - start))
    print(json.dumps({"images_per_second": rates, "files": len(dataset), "opening_seconds": opening}))


if __name__ == "__main__":
    main()
