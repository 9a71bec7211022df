# SPDX-License-Identifier: BSD-3-Clause
"""The Python twin of benchmarks/loader.cpp."""
import argparse
import json
import time

import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler


class Images(Dataset):
    """A whole batch is gathered at once and turned into floats then."""

    def __init__(self, count):
        self.images = torch.randint(256, (count, 1, 28, 28), dtype=torch.uint8)
        self.labels = torch.arange(count) % 10

    def __len__(self):
        return len(self.images)

    def __getitem__(self, indices):
        indices = torch.as_tensor(indices)
        return self.images.index_select(0, indices).float().div_(255).sub_(0.5).div_(0.5), self.labels[indices]


class Augmented(Dataset):
    def __init__(self, count):
        self.images = torch.randint(256, (count, 3, 32, 32), dtype=torch.uint8)
        self.labels = torch.arange(count) % 10

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        padded = torch.constant_pad_nd(self.images[index], (4, 4, 4, 4))
        top, left = torch.randint(9, (2,)).tolist()
        floats = padded[:, top:top + 32, left:left + 32].float().div_(255)
        if torch.rand(1).item() < 0.5:
            floats = floats.flip(2)
        return floats.add_(torch.randn(3, 32, 32), alpha=0.05), self.labels[index]


def loader_of(flags):
    if flags.dataset == "augmented":
        return DataLoader(Augmented(flags.samples or 5000), flags.batch_size, shuffle=True, num_workers=flags.workers)
    images = Images(flags.samples or 60000)
    # With batch_size None the loader hands each list of indices to the dataset as it is.
    return DataLoader(images, batch_size=None, sampler=BatchSampler(RandomSampler(images), flags.batch_size, False),
                      num_workers=flags.workers)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", choices=["images", "augmented"], default="images")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--samples", type=int, default=0)
    parser.add_argument("--passes", type=int, default=4)
    flags = parser.parse_args()
    torch.manual_seed(0)
    loader = loader_of(flags)
    rates = []
    for _ in range(flags.passes):
        start = time.perf_counter()
        samples = sum(len(target) for _, target in loader)
        rates.append(samples / (time.perf_counter() - start))
    print(json.dumps({"samples_per_second": rates}))


if __name__ == "__main__":
    main()
