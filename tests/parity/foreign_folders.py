# SPDX-License-Identifier: BSD-3-Clause
"""Folders of classes whose names sort in odd ways, for foreign_files.py."""
import os

from torchvision.datasets import DatasetFolder

from foreign_values import Case


def samples(root):
    folder = DatasetFolder(os.fsdecode(root), loader=None, extensions=(".jpg",), allow_empty=True)
    files = [(os.fsencode(os.path.relpath(path, folder.root)), target) for path, target in folder.samples]
    return [os.fsencode(name) for name in folder.classes], files


def tree(root, names):
    for name in names:
        path = os.path.join(os.fsencode(root), name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb"):
            pass


NAMES_OF_CLASSES = {
    "names of classes in UTF-8": [b"a", "\u00e9".encode(), "\u65e5\u672c".encode(), "\U0001f642".encode(), "\ue000".encode()],
    "names of classes that are not UTF-8": [b"\xe9", "\u00e9".encode(), b"\xff", "\ue000".encode(), "\U0001f642".encode(),
                                            b"\xc3", b"\xe2\x82", "\u20ac".encode(), b"\xed\xa0\x80", b"\xc0\xaf", b"z"],
}


def cases(folder):
    for kind, names in NAMES_OF_CLASSES.items():
        root = folder / kind.replace(" ", "_")
        tree(root, [name + b"/1.jpg" for name in names])
        yield Case(kind, "torchvision", "class folders", root, lambda root=root: samples(root))
