# SPDX-License-Identifier: BSD-3-Clause
"""Prints the splits that PyTorch and scikit-learn draw for many drawn arguments, one case a line:
kind name=value ... : numbers. -1 ends each list of numbers."""
import random
import warnings

import numpy
import torch
from sklearn.model_selection import StratifiedShuffleSplit
from torch.utils.data import random_split

draw = random.Random(20240301)


def show(kind, arguments, *lists):
    numbers = [number for numbers in lists for number in [*numbers, -1]]
    print(kind, *(f"{name}={int(value)}" for name, value in arguments.items()), ":", *numbers)


def parts_of(total, count):
    cuts = sorted(draw.randrange(total + 1) for _ in range(count - 1))
    return [high - low for low, high in zip([0, *cuts], [*cuts, total])]


def random_split_cases(count):
    """With a denominator, the first list holds the numerators of fractions, otherwise lengths."""
    for _ in range(count):
        n = draw.choice([1, 2, draw.randrange(1, 50), draw.randrange(1, 400)])
        denominator = draw.choice([0, 1, 3, 7, 10, 100, 1000, draw.randrange(1, 10**6)])
        parts = parts_of(denominator or n, draw.randrange(1, 6))
        lengths = [part / denominator for part in parts] if denominator else parts
        if denominator and sum(lengths) > 1:
            continue  # added up with rounding errors, which depends on the version of Python
        arguments = {"n": n, "denominator": denominator, "own_seed": draw.choice([-1, draw.randrange(2**31)]),
                     "default_seed": draw.randrange(2**31)}
        torch.manual_seed(arguments["default_seed"])
        own = [] if arguments["own_seed"] < 0 else [torch.Generator().manual_seed(arguments["own_seed"])]
        subsets = random_split(range(n), lengths, *own)
        show("random_split", arguments, parts, *(subset.indices for subset in subsets))


def draw_size(n):
    """(0: None, 1: a number of samples, 2: a fraction in thousandths; the number; the argument)"""
    kind = draw.choice([0, 1, 2, 2])
    number = draw.randrange(n + 1) if kind == 1 else draw.randrange(1001)
    return kind, number, [None, number, number / 1000][kind]


def draw_labels():
    classes = draw.choice([1, 2, 3, 10, draw.randrange(1, 30)])
    values = draw.sample(range(1000), classes)
    each = draw.choice([2, 3, draw.randrange(2, 20)])
    # Equal classes, whose shares chance decides, or a class for itself and others of any size.
    counts = [each if draw.random() < 0.6 else draw.randrange(2, 40) for _ in values]
    labels = [value for value, count in zip(values, counts) for _ in range(count)]
    draw.shuffle(labels)
    return labels


def stratified_cases(count):
    found = 0
    while found < count:
        labels = draw_labels()
        if draw.random() < 0.05:
            labels.append(max(labels) + 1)
        test, train = draw_size(len(labels)), draw_size(len(labels))
        arguments = {"seed": draw.choice([0, 1, 42, 2**32 - 1, draw.randrange(2**32)]), "test": test[1], "test_kind": test[0],
                     "train": train[1], "train_kind": train[0], "error": False}
        splitter = StratifiedShuffleSplit(1, test_size=test[2], train_size=train[2], random_state=arguments["seed"])
        try:
            parts = next(splitter.split(numpy.zeros(len(labels)), labels))
        except ValueError:
            arguments["error"] = True
            parts = ()
        found += not arguments["error"]
        show("stratified", arguments, labels, *parts)


def train_val_cases(count):
    """As classification tutorials split: the files of each class in sorted order."""
    for _ in range(count):
        classes = draw.randrange(1, 8)
        largest = draw.choice([5, 30, 100, 300]) if draw.random() < 0.95 else 3000
        labels = [label for label in range(classes) for _ in range(draw.randrange(largest))]
        if draw.random() < 0.3:
            draw.shuffle(labels)
        seed = draw.choice([0, 1, 42, 2**32 - 1, 2**32, -1, -2**63, draw.randrange(-2**63, 2**63)])
        thousandths = draw.choice([0, 100, 200, 300, 1000, draw.randrange(1001)])
        random.seed(seed)
        train, val = [], []
        for label in range(classes):
            images = [i for i, each in enumerate(labels) if each == label]
            val_images = set(random.sample(images, k=int(len(images) * (thousandths / 1000))))
            for image in images:
                (val if image in val_images else train).append(image)
        show("train_val", {"seed": seed, "thousandths": thousandths}, labels, train, val)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    random_split_cases(700)
    stratified_cases(500)
    train_val_cases(500)
