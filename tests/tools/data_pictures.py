# SPDX-License-Identifier: BSD-3-Clause
"""data_pictures.py FOLDER: writes the pictures of two classes and, from torchvision, texts.json with the printed form of
transforms, and expected.png with a grid of the pictures."""
import json
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import torchvision_cpu  # noqa: E402, F401

import torch  # noqa: E402
from torchvision.io import ImageReadMode, decode_image, write_png  # noqa: E402
from torchvision.transforms import v2  # noqa: E402
from torchvision.transforms.v2 import *  # noqa: E402, F403
from torchvision.transforms.v2 import AutoAugmentPolicy, InterpolationMode  # noqa: E402
from torchvision.utils import make_grid  # noqa: E402

TEXTS = [
    "Resize(224)", "Resize([20, 30], v2.InterpolationMode.BICUBIC, antialias=False)", "Resize(20, max_size=40)",
    "CenterCrop((10, 20))", "RandomCrop(32, 4)", "RandomCrop(32, padding=[1, 2], fill=7, padding_mode='reflect')",
    "RandomResizedCrop(224, scale=(0.5, 1.0), ratio=(12/4/4, 4/3))", "RandomHorizontalFlip()", "RandomHorizontalFlip(0.25)",
    "RandomVerticalFlip(p=1.0)", "ColorJitter(0.4, 0.4, saturation=(0.5, 1.5), hue=.1)", "Grayscale(3)", "RandomGrayscale()",
    "RandomGrayscale(p=.2)", "GaussianBlur(3)", "GaussianBlur((5, 3), sigma=(0.1, 1e0))", "RandomRotation(30)",
    "RandomRotation((-10, +20), interpolation='bilinear', expand=True)", "RandomAffine(15, translate=(0.1, 0.2), shear=5)",
    "RandomErasing()", "RandomErasing(p=0.1, scale=(0.1, 0.2), value='random')", "Pad(3)",
    "Pad([1, 2, 3, 4], fill=7, padding_mode=\"edge\")", "ToDtype(torch.float32, scale=True)",
    "AutoAugment(AutoAugmentPolicy.CIFAR10)", "RandAugment(num_ops=3, magnitude=5)", "TrivialAugmentWide()",
    "RandomApply([v2.ColorJitter(brightness=0.3)], p=0.3)", "RandomChoice([v2.GaussianBlur(3), v2.Pad(2)], p=[1, 3])",
    "Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225])",
]


def printed(transform):
    """torchvision prints a mode as a value or, if it was given, as a member of the enumeration."""
    return re.sub(r"InterpolationMode\.(\w+)", lambda match: match[1].lower(), repr(transform))


def main():
    folder = pathlib.Path(sys.argv[1])
    draw = torch.Generator().manual_seed(3)
    files = [folder / "pictures" / name / f"{i}.png" for name in ("cat", "dog") for i in range(3)]
    for i, file in enumerate(files):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_png(torch.randint(256, (3, 40 + i, 50 - i), generator=draw, dtype=torch.uint8), str(file))
    texts = {text: printed(eval(text)) for text in TEXTS}
    (folder / "texts.json").write_text(json.dumps(texts))
    transform = v2.Compose([v2.Resize(24), v2.CenterCrop(20)])
    pictures = [transform(decode_image(str(file), ImageReadMode.RGB)) for file in files]
    write_png(make_grid(pictures, nrow=4), str(folder / "expected.png"))


if __name__ == "__main__":
    main()
