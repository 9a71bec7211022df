# SPDX-License-Identifier: BSD-3-Clause
"""Makes drawn folders of empty files and lists them with torchvision: folder_cases.py <folder> <cases>"""
import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import torchvision_cpu  # noqa: E402, F401

import torch  # noqa: E402
from torchvision.datasets import DatasetFolder, ImageFolder  # noqa: E402

NAMES = ["a", "b", "A", "a-b", "a b", "a.b", "10", "9", "é", "z", ".hidden", "日本"]
FILES = ["1.jpg", "2.JPG", "10.png", "x.jpeg", "y.txt", "z.webp", "noextension", ".jpg", "b.tar.gz", "ä.bmp"]


def draw_folder(draw, folder, depth):
    folder.mkdir()
    for name in draw.sample(FILES, draw.randrange(4)):
        (folder / name).touch()
    if depth == 0:
        return
    for name in draw.sample(NAMES, draw.randrange(3)):
        draw_folder(draw, folder / name, depth - 1)


def listed(root, options):
    make = DatasetFolder if "extensions" in options else ImageFolder
    arguments = {"loader": None} if make is DatasetFolder else {}
    if "extensions" in options:
        options = options | {"extensions": tuple(options["extensions"])}
    try:
        dataset = make(root, **arguments, **options)
    except FileNotFoundError as error:
        return {"error": str(error)}
    return {
        "classes": dataset.classes,
        "class_to_idx": dataset.class_to_idx,
        "paths": [path for path, _ in dataset.samples],
        "targets": dataset.targets,
    }


def main():
    folder, count = pathlib.Path(sys.argv[1]), int(sys.argv[2])
    draw = random.Random(7)
    cases = []
    for number in range(count):
        root = folder / f"case{number}"
        root.mkdir()
        for name in draw.sample(NAMES, draw.randrange(4)):
            draw_folder(draw, root / name, 2)
        options = {"allow_empty": draw.random() < 0.8}
        if draw.random() < 0.3:
            options["extensions"] = draw.sample([".txt", ".jpg", ".tar.gz", "g"], 2)
        cases.append({"root": str(root)} | options | listed(root, options))
    torch.save(cases, folder / "cases.pt")


main()
