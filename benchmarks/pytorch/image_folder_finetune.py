# SPDX-License-Identifier: BSD-3-Clause
"""The Python counterpart of examples/image_folder_finetune.cpp: the same pictures, decoder, weights, seeds and order, hence the
same losses. The folder must exist. Prints JSON.

    torchrun --nproc-per-node 2 benchmarks/pytorch/image_folder_finetune.py --folder .data/stripes"""
import argparse
import json
import os
import pathlib
import random
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/support"), str(ROOT / "tests/parity")]
import torchvision_cpu  # noqa: E402, F401

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torchvision  # noqa: E402
from sample_seeds import seed_of  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR  # noqa: E402
from torch.utils.data import DataLoader, Dataset, DistributedSampler  # noqa: E402
from torchvision.datasets import ImageFolder  # noqa: E402
from torchvision.io import ImageReadMode, decode_image  # noqa: E402
from torchvision.transforms import v2  # noqa: E402


class Seeded(Dataset):
    """The samples `indices`. The transform of each draws from a seed of its own, as with Lockstep's augmentation_seed."""

    def __init__(self, folder, indices, transform, seed=0):
        self.images = ImageFolder(folder, transform, loader=lambda file: decode_image(file, ImageReadMode.RGB))
        self.indices, self.seed, self.epoch = indices, seed, 0

    def __len__(self):
        return len(self.indices)

    def __getitem__(self, number):
        state = torch.get_rng_state()
        torch.manual_seed(seed_of(self.seed, self.epoch, 0, self.indices[number]))
        sample = self.images[self.indices[number]]
        torch.set_rng_state(state)
        return sample


def split(targets, seed):
    """The split of the classification tutorials: a fifth of each class, drawn with Python's generator."""
    draw = random.Random(seed)
    chosen = set()
    for label in sorted(set(targets)):
        images = [index for index, target in enumerate(targets) if target == label]
        chosen |= set(draw.sample(images, k=int(len(images) * 0.2)))
    train = sorted(set(range(len(targets))) - chosen, key=lambda index: (targets[index], index))
    return train, sorted(chosen, key=lambda index: (targets[index], index))


def transforms(size):
    to_tensor = v2.Lambda(lambda image: image.float().div_(255))  # torchvision's ToTensor, which takes no tensors
    last = [to_tensor, v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
    return (v2.Compose([v2.RandomResizedCrop(size), v2.RandomHorizontalFlip(), *last]),
            v2.Compose([v2.Resize(size * 256 // 224), v2.CenterCrop(size), *last]))


def parse_flags():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--arch", choices=["resnet18", "resnet34"], default="resnet18")
    for name, default in {"size": 64, "epochs": 3, "batch-size": 16, "workers": 1, "seed": 0}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--lrf", type=float, default=0.1)
    parser.add_argument("--save", help="file for the trained weights")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--channels-last", action="store_true")
    return parser.parse_args()


def mean_over_ranks(numbers):
    total = torch.tensor(numbers, dtype=torch.float64)
    dist.all_reduce(total)
    return (total / dist.get_world_size()).tolist()


@torch.no_grad()
def accuracy(net, dataset, flags):
    share = range(dist.get_rank(), len(dataset), dist.get_world_size())
    net.eval()
    counts = torch.zeros(2, dtype=torch.int64)
    for images, targets in DataLoader(dataset, flags.batch_size, sampler=share, num_workers=flags.workers):
        counts += torch.tensor([(net(images).argmax(1) == targets).sum(), len(targets)])
    dist.all_reduce(counts)
    return counts[0].item() / counts[1].item()


def main():
    flags = parse_flags()
    dist.init_process_group("gloo")
    torch.manual_seed(flags.seed)
    augment, resize = transforms(flags.size)
    train, val = split(ImageFolder(flags.folder).targets, flags.seed)
    train_set, val_set = Seeded(flags.folder, train, augment, flags.seed), Seeded(flags.folder, val, resize)
    sampler = DistributedSampler(train_set, seed=flags.seed)
    loader = DataLoader(train_set, flags.batch_size, sampler=sampler, num_workers=flags.workers)

    net = getattr(torchvision.models, flags.arch)()
    net.fc = torch.nn.Linear(net.fc.in_features, len(train_set.images.classes))
    if flags.channels_last:
        net.to(memory_format=torch.channels_last)
    ddp = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(ddp.parameters(), flags.lr, momentum=0.9, weight_decay=5e-5)
    epoch_steps = len(loader)
    warmup = LinearLR(optimizer, 0.01, 1, epoch_steps)
    cosine = CosineAnnealingLR(optimizer, max(flags.epochs - 1, 1) * epoch_steps, flags.lr * flags.lrf)
    schedule = SequentialLR(optimizer, [warmup, cosine], [epoch_steps])

    losses, times, accuracies = [], [], []
    for epoch in range(flags.epochs):
        sampler.set_epoch(epoch)
        train_set.epoch = epoch
        net.train()
        for images, targets in loader:
            with torch.autocast("cpu", torch.bfloat16, enabled=flags.bf16):
                loss = F.cross_entropy(ddp(images), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            losses.append(loss.item())
            times.append(time.time())
        accuracies.append(accuracy(net, val_set, flags))
    losses = mean_over_ranks(losses)
    if dist.get_rank() == 0 and flags.save:
        torch.save(net.state_dict(), flags.save)
    if dist.get_rank() == 0:
        print(json.dumps({"losses": losses, "times": times, "accuracy": accuracies}))
    sys.stdout.flush()
    os._exit(0)  # the destructors of DDP and its Gloo group, which run with the GIL, can wait for each other forever


if __name__ == "__main__":
    main()
