# SPDX-License-Identifier: BSD-3-Clause
"""Writes what torchvision's transforms make of drawn images with drawn arguments: transform_cases.py <file>.
The cases of the file: the transform's name and arguments, what it prints, image, seed, result, and the next
numbers that the default generator gives (a normal one, of which it keeps a second, and an integer)."""
import os
import random
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import torch
import torchvision_cpu  # noqa: F401, before torchvision
import torchvision
from torchvision.transforms import functional as v1
from torchvision.transforms import v2

draw = random.Random(22)
SIZES = [(1, 1), (1, 9), (11, 1), (5, 40), (32, 32), (33, 20), (17, 29), (29, 18)]
TAKES_NAMES = tuple(map(int, torchvision.__version__.split("+")[0].split(".")[:2])) >= (0, 28)  # of interpolation modes
INTERPOLATIONS = ["nearest", "nearest-exact", "bilinear", "bicubic"]
RANDOM_CASES = 100


def pixels(shape, dtype):
    """Noise, or what a photograph has more of: slopes."""
    if draw.random() < 0.5:
        image = torch.randint(0, 256, shape)
    else:
        rows, columns = torch.arange(shape[-2]).view(-1, 1), torch.arange(shape[-1])
        channels = torch.arange(shape[-3]).view(-1, 1, 1)
        image = (rows * draw.randint(1, 9) + columns * draw.randint(1, 9) + channels * 40).expand(shape) % 256
    return image.to(torch.uint8) if dtype == torch.uint8 else image.to(dtype) / 255


def laid_out(image):
    """As a decoder, a crop of a decoded image, or another transform leaves it."""
    kind = draw.choice(["contiguous", "channels_last", "part"])
    if kind == "contiguous":
        return image.contiguous()
    last = image.movedim(-3, -1).contiguous().movedim(-1, -3)
    if kind == "channels_last":
        return last
    around = torch.nn.functional.pad(image, (1, 2, 3, 1)).movedim(-3, -1).contiguous().movedim(-1, -3)
    return around[..., 3:-1, 1:-2]


def image(sizes=SIZES, channels=(1, 3), floats=True, batches=True):
    dtype = torch.float32 if floats and draw.random() < 0.3 else torch.uint8
    shape = (draw.choice(channels), *draw.choice(sizes))
    if batches and draw.random() < 0.2:
        shape = (2, *shape)
    return laid_out(pixels(shape, dtype))


class ToTensor:
    """v1's for an array, which is the transform for tensors here."""

    def __call__(self, image):
        if image.dtype != torch.uint8:
            return image
        return v1.to_tensor(image.permute(1, 2, 0).numpy())

    def __repr__(self):
        return "ToTensor()"


def text_of(made):
    """As it is where transforms take names."""
    return re.sub(r"InterpolationMode\.(\w+)", lambda match: v2.InterpolationMode[match[1]].value, repr(made))


def transform(name, arguments):
    if name == "ToTensor":
        return ToTensor()
    arguments = dict(arguments)
    if "transforms" in arguments:
        arguments["transforms"] = [transform(*each) for each in arguments["transforms"]]
    if "policy" in arguments:
        arguments["policy"] = v2.AutoAugmentPolicy(arguments["policy"])
    if "interpolation" in arguments and not TAKES_NAMES:
        arguments["interpolation"] = v2.InterpolationMode(arguments["interpolation"])
    return getattr(v2, name)(**arguments)


def case(name, arguments, *inputs):
    seed = draw.randrange(2**31)
    made = transform(name, arguments)
    torch.manual_seed(seed)
    result = made(*inputs)
    numbers = [torch.randn(()).item(), torch.empty((), dtype=torch.int64).random_().item()]
    return {"name": name, "arguments": arguments, "text": text_of(made), "inputs": list(inputs), "seed": seed,
            "results": list(result) if isinstance(result, tuple) else [result], "next": numbers}


def some(**arguments):
    """A part of the arguments; the others keep their defaults."""
    return {name: value for name, value in arguments.items() if draw.random() < 0.6}


def edge():
    return draw.choice([1, 2, 7, 16, 33, 50])


def size():
    return draw.choice([edge(), (edge(), edge())])


def fill(channels):
    per_channel = tuple(float(draw.randrange(256)) + 0.5 for _ in range(channels))
    return draw.choice([0, 3, 250, 1.5, per_channel if channels > 1 else 9])


def resize():
    arguments = some(interpolation=draw.choice(INTERPOLATIONS), antialias=draw.random() < 0.5)
    kind = draw.choice(["size", "edge", "limited", "longer"])
    sizes = [(8, 8), (5, 40), (32, 32), (33, 20), (17, 29)]
    if kind == "size":
        arguments["size"], sizes = (edge(), edge()), SIZES
    elif kind == "edge":
        arguments["size"] = edge()
    elif kind == "limited":
        arguments["size"] = edge()
        arguments["max_size"] = arguments["size"] + draw.randrange(10, 30)
    else:
        arguments["size"], arguments["max_size"] = None, draw.randrange(9, 60)
    return "Resize", arguments, image(sizes, channels=(1, 3, 4))


def center_crop():
    return "CenterCrop", {"size": size()}, image()


def padding(least):
    return draw.choice([least, (1, least), (0, 1, least, 2), (least, least, 0, 0)])


def random_crop():
    mode = draw.choice(["constant", "edge", "reflect", "symmetric"])
    channels = draw.choice([1, 3])
    arguments = some(padding=padding(draw.randrange(0, 5)), pad_if_needed=True)
    if mode != "constant":
        arguments["padding_mode"] = mode
    elif draw.random() < 0.7:
        arguments["fill"] = fill(channels)
    # Reflection needs an image that is larger than its padding, and RandomCrop one that is larger than the crop.
    arguments["size"] = size() if arguments.get("pad_if_needed") and mode in ("constant", "edge") else (16, 12)
    # torchvision pads no batches symmetrically in more than four dimensions.
    return "RandomCrop", arguments, image([(32, 32), (33, 20), (17, 29), (29, 18)], (channels,))


def random_resized_crop():
    arguments = {"size": size()} | some(scale=(0.3, 0.9), ratio=(0.5, 3.0), interpolation=draw.choice(INTERPOLATIONS),
                                        antialias=draw.random() < 0.5)
    return "RandomResizedCrop", arguments, image()


def horizontal_flip():
    return "RandomHorizontalFlip", some(p=draw.choice([0.1, 0.9, 1.0, 0.0])), image()


def vertical_flip():
    return "RandomVerticalFlip", some(p=draw.choice([0.1, 0.9, 1.0, 0.0])), image()


def pad():
    channels = draw.choice([1, 3])
    mode = draw.choice(["constant", "edge", "reflect", "symmetric"])
    amount = padding(draw.randrange(1, 5))
    arguments = {"padding": list(amount) if isinstance(amount, tuple) else amount, "padding_mode": mode}
    if mode == "constant" and draw.random() < 0.8:
        arguments["fill"] = fill(channels)
    return "Pad", arguments, image([(9, 9), (5, 40), (17, 29)] if mode in ("reflect", "symmetric") else SIZES, (channels,))


def to_tensor():
    return "ToTensor", {}, image(batches=False)


def to_dtype():
    return "ToDtype", {"dtype": draw.choice([torch.uint8, torch.float32, torch.float64])} | some(scale=True), image()


def normalize_arguments(channels):
    count = draw.choice([1, channels])
    return {"mean": [draw.random() for _ in range(count)], "std": [0.1 + draw.random() for _ in range(count)]}


def normalize():
    channels = draw.choice([1, 3])
    picture = laid_out(pixels((channels, *draw.choice(SIZES)), torch.float32))
    return "Normalize", normalize_arguments(channels), picture


def convert_and_normalize():
    channels = draw.choice([1, 3, 4])
    conversion = draw.choice([("ToTensor", {}), ("ToDtype", {"dtype": torch.float32, "scale": True}),
                              ("ToDtype", {"dtype": torch.float32}), ("ToDtype", {"dtype": torch.float64, "scale": True})])
    steps = [conversion, ("Normalize", normalize_arguments(channels))]
    if draw.random() < 0.5:
        steps = [("RandomHorizontalFlip", {}), *steps, ("RandomVerticalFlip", {})]
    return "Compose", {"transforms": steps}, image(channels=(channels,), batches=conversion[0] != "ToTensor")


def training():
    steps = [("RandomResizedCrop", {"size": 16}), ("RandomHorizontalFlip", {}), ("ToTensor", {}),
             ("Normalize", {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]})]
    return "Compose", {"transforms": steps}, image(channels=(3,), floats=False, batches=False)


def nested(name):
    parts = [("RandomCrop", {"size": 9}), ("RandomVerticalFlip", {}), ("Compose", {"transforms": [("Pad", {"padding": 2}),
             ("RandomHorizontalFlip", {})]}), ("RandomHorizontalFlip", {"p": 0.3})]
    chosen = draw.sample(parts, draw.randrange(1, 4))
    arguments = {"transforms": chosen}
    if draw.random() < 0.6:
        # Python 3.12 adds numbers with a compensation; sums of these are exact.
        arguments["p"] = 0.3 if name == "RandomApply" else [draw.randint(1, 64) / 64 for _ in chosen]
    return name, arguments, image([(16, 12), (9, 9)])


def random_apply():
    return nested("RandomApply")


def random_choice():
    return nested("RandomChoice")


def color_jitter():
    def factor(most):
        return draw.choice([most * draw.random(), (0.5, 1.5), (0.2, 0.2)])

    hue = draw.choice([0.5 * draw.random(), (-0.2, 0.3), (0.1, 0.1)])
    return "ColorJitter", some(brightness=factor(1.5), contrast=factor(1.5), saturation=factor(1.5), hue=hue), image()


def grayscale():
    return "Grayscale", some(num_output_channels=draw.choice([1, 3])), image()


def random_grayscale():
    return "RandomGrayscale", {"p": draw.choice([0.1, 0.5, 0.9])}, image()


def gaussian_blur():
    arguments = {"kernel_size": draw.choice([1, 3, 5, (3, 7), (9, 1)])}
    return "GaussianBlur", arguments | some(sigma=draw.choice([0.7, (0.5, 3.0)])), image([(5, 40), (17, 29), (33, 20)], (1, 3, 4))


def random_erasing():
    channels = draw.choice([1, 3])
    value = draw.choice([7, "random", tuple(float(draw.randrange(256)) + 0.25 for _ in range(channels))])
    arguments = some(p=draw.choice([0.9, 1.0]), scale=(0.1, 0.9), ratio=(0.5, 2.5), value=value)
    return "RandomErasing", arguments, image(channels=(channels,))


def center():
    return draw.choice([(0, 0), (3, 5), (7.5, 2.25)])


def random_rotation():
    channels = draw.choice([1, 3])
    degrees = draw.choice([30, 200.5, (0, 360), (90, 90), (180, 180), (-90, -90), (0, 0), (45, 45)])
    arguments = {"degrees": degrees} | some(interpolation="bilinear", expand=True, fill=draw.choice([None, fill(channels)]),
                                            center=center())
    return "RandomRotation", arguments, image(SIZES + [(24, 24)], (channels,))


def random_affine():
    channels = draw.choice([1, 3])
    arguments = {"degrees": draw.choice([0, 20, (-170, 45.5)])} | some(
        translate=(0.1, draw.random()), scale=(0.5, 1.5 + draw.random()), shear=draw.choice([7, (-5, 20), (0.0, 9.5, 3.0, 30.0)]),
        interpolation="bilinear", fill=draw.choice([None, fill(channels)]), center=center())
    return "RandomAffine", arguments, image(channels=(channels,))


def augmentation(name, **options):
    channels = draw.choice([1, 3])
    arguments = some(interpolation="bilinear", fill=fill(channels), **options)
    return name, arguments, image(SIZES + [(24, 24), (40, 50)], (channels,))


def rand_augment():
    return augmentation("RandAugment", num_ops=draw.randrange(1, 5), magnitude=draw.randrange(20),
                        num_magnitude_bins=draw.randrange(20, 32))


def trivial_augment_wide():
    return augmentation("TrivialAugmentWide", num_magnitude_bins=draw.randrange(2, 40))


def auto_augment():
    name, arguments, picture = augmentation("AutoAugment")
    return name, arguments | {"policy": draw.choice(["imagenet", "cifar10", "svhn"])}, picture


def mix(name, *dtypes):
    count, classes = draw.randrange(1, 6), draw.randrange(1, 7)
    images = laid_out(pixels((count, draw.choice([1, 3]), *draw.choice(SIZES)), draw.choice(dtypes)))
    labels = torch.randint(0, classes, (count,))
    arguments = some(alpha=draw.choice([0.2, 1.0, 3.5])) | {"num_classes": classes}
    if draw.random() < 0.3:
        labels = torch.rand((count, classes), dtype=draw.choice([torch.float32, torch.float64]))
        arguments = some(**arguments)
    return name, arguments, images, labels


def mix_up():
    return mix("MixUp", torch.float32, torch.float64)


def cut_mix():
    return mix("CutMix", torch.float32, torch.uint8)


FIXED = [resize, center_crop, pad, to_tensor, to_dtype, normalize, convert_and_normalize, grayscale]
RANDOM = [random_crop, random_resized_crop, horizontal_flip, vertical_flip, training, random_apply, random_choice, color_jitter, random_grayscale, gaussian_blur,
          random_erasing, random_rotation, random_affine, rand_augment, trivial_augment_wide, auto_augment, mix_up, cut_mix]

def policies():
    """All steps of all policies, of which the cases above draw few."""
    return [[list(step) for pair in v2.AutoAugment(policy)._policies for step in pair] for policy in v2.AutoAugmentPolicy]


if __name__ == "__main__":
    torch.manual_seed(22)
    cases = [case(*drawn()) for drawn in FIXED for _ in range(40)]
    cases += [case(*drawn()) for drawn in RANDOM for _ in range(RANDOM_CASES)]
    torch.save({"cases": cases, "policies": policies()}, sys.argv[1])
