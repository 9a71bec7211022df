# SPDX-License-Identifier: BSD-3-Clause
"""How much torchvision's transforms of PIL images differ from those of tensors, which Lockstep has: a table for
docs/images.md, in levels of 0 to 255 over 20 photographs."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests/support"))
import torchvision_cpu  # noqa: E402, F401

import numpy  # noqa: E402
import torch  # noqa: E402
from photographs import photograph  # noqa: E402
from torchvision.transforms import InterpolationMode, v2  # noqa: E402
from torchvision.transforms.v2 import functional as F  # noqa: E402

BILINEAR = InterpolationMode.BILINEAR
TRANSFORMS = [
    v2.CenterCrop(224), v2.RandomCrop(224), v2.RandomHorizontalFlip(), v2.RandomVerticalFlip(), v2.Pad(4),
    v2.Resize(224), v2.Resize(224, interpolation=InterpolationMode.BICUBIC),
    v2.Resize(224, interpolation=InterpolationMode.NEAREST), v2.RandomResizedCrop(224),
    v2.Grayscale(), v2.ColorJitter(brightness=0.4), v2.ColorJitter(contrast=0.4), v2.ColorJitter(saturation=0.4),
    v2.ColorJitter(hue=0.2), v2.GaussianBlur(5), v2.RandomRotation(30), v2.RandomRotation(30, interpolation=BILINEAR),
    v2.RandomAffine(10, shear=10), v2.RandAugment(), v2.TrivialAugmentWide(), v2.AutoAugment(),
]


def differences(transform, images):
    """The mean and the largest difference of a level, and the share of levels that differ."""
    every = []
    for seed, image in enumerate(images):
        torch.manual_seed(seed)
        by_pil = F.pil_to_tensor(transform(image))
        torch.manual_seed(seed)
        by_tensor = transform(F.pil_to_tensor(image))
        every.append((by_pil.int() - by_tensor.int()).abs().flatten())
    every = torch.cat(every).float()
    return every.mean().item(), int(every.max()), (every > 0).float().mean().item()


def main():
    draw = numpy.random.default_rng(0)
    images = [photograph(draw, 500, 375) for _ in range(20)]
    print("| transform | levels that differ | mean difference | largest |\n|---|---|---|---|")
    for transform in TRANSFORMS:
        mean, largest, share = differences(transform, images)
        print(f"| `{transform}` | {100 * share:.1f} % | {mean:.3f} | {largest} |")


main()
