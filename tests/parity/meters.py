# SPDX-License-Identifier: BSD-3-Clause
"""tqdm's lines for random figures: meters.py <file>, which gets {"meters": [...], "numbers": {...}} for meter_test.cpp."""
import random
import sys

import torch
from tqdm import tqdm


def random_meter(draw):
    total = draw.choice([None, 0, 1, 7, 100, 12345])
    initial = draw.choice([0, 0, 3])
    meter = {"n": initial + draw.choice([0, 1, 5, 50, 9999]), "total": total, "initial": initial,
             "elapsed": draw.choice([0.0, 0.3, 59.99, 61.0, 4000.5, 360000.0]),
             "rate": draw.choice([None, None, 0.01, 0.5, 1.0, 3.456, 98765.4]),
             "prefix": draw.choice(["", "train", "Epoch 3 äö"]), "unit": draw.choice(["it", "img"]),
             "postfix": draw.choice(["", "loss=0.3, lr=1e-5"]), "ncols": draw.choice([1, 20, 40, 79, 120])}
    line = tqdm.format_meter(ascii=True, **meter)
    plain = tqdm.format_meter(ascii=True, **(meter | {"ncols": 0}))
    return meter | {"line": line, "plain": plain}


def main():
    draw = random.Random(3)
    numbers = [0.3, 1 / 3, 1e-5, 123456.75, 1e20, -0.000123456, 5, 1000, 99999, float("inf")]
    torch.save({"meters": [random_meter(draw) for _ in range(500)],
                "numbers": {float(number): tqdm.format_num(number) for number in numbers}}, sys.argv[1])


if __name__ == "__main__":
    main()
