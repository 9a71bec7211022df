# SPDX-License-Identifier: BSD-3-Clause
"""The Python counterpart of mnist.cpp: the same net, data, order, seeds and steps, hence the same losses.

    OMP_NUM_THREADS=1 torchrun --nproc-per-node 2 benchmarks/pytorch/mnist.py --data-dir .data/mnist
"""
import argparse
import gzip
import json
import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests/parity"))
from models import MnistNet  # noqa: E402

TYPES = {"none": torch.bfloat16, "bf16": torch.bfloat16, "fp16": torch.float16}


def read_idx(folder, name):
    """The uint8 tensor of an IDX file, gzip-compressed or plain, in `folder` or in `folder`/MNIST/raw."""
    for parent in (folder, folder / "MNIST" / "raw"):
        for file, opened in ((parent / name, open), (parent / f"{name}.gz", gzip.open)):
            if not file.exists():
                continue
            with opened(file, "rb") as stream:
                data = bytearray(stream.read())
            dimensions = data[3]
            shape = [int.from_bytes(data[4 + 4 * i:8 + 4 * i], "big") for i in range(dimensions)]
            return torch.frombuffer(data, dtype=torch.uint8, offset=4 + 4 * dimensions).view(shape)
    raise SystemExit(f"{name} is not in {folder}: run build/release/bin/benchmark mnist --data-dir {folder} once")


class Images(Dataset):
    """All in memory as bytes. A whole batch is gathered at once and turned into floats then."""

    def __init__(self, folder, part):
        self.images = read_idx(folder, f"{part}-images-idx3-ubyte").unsqueeze(1)
        self.labels = read_idx(folder, f"{part}-labels-idx1-ubyte").long()

    def __len__(self):
        return len(self.images)

    def __getitem__(self, indices):
        indices = torch.as_tensor(indices)
        images = self.images.index_select(0, indices).float().div_(255).sub_(0.5).div_(0.5)
        return images, self.labels.index_select(0, indices)


def whole_batches(dataset, sampler, batch_size):
    # With batch_size None the loader hands each list of indices to the dataset as it is.
    return DataLoader(dataset, batch_size=None, sampler=BatchSampler(sampler, batch_size, drop_last=False))


def add_over_ranks(tensor):
    if dist.is_initialized():
        dist.all_reduce(tensor)
    return tensor


def train_epoch(model, loader, optimizer, scaler, flags):
    model.train()
    start = time.perf_counter()
    loss_sum = 0.0
    samples = 0
    for step, (images, labels) in enumerate(loader, 1):
        optimizer.zero_grad()
        if flags.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        with torch.autocast("cpu", TYPES[flags.amp], enabled=flags.amp != "none"):
            loss = F.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        loss_sum += loss.item() * len(labels)
        samples += len(labels)
        if flags.log_interval and step % flags.log_interval == 0 and int(os.environ.get("RANK", 0)) == 0:
            print(f"step {step}/{len(loader)}, loss {loss.item():.4f}", flush=True)
        if step == flags.max_steps:
            break
    totals = add_over_ranks(torch.tensor([loss_sum, samples], dtype=torch.float64))
    return (totals[0] / totals[1]).item(), int(totals[1]), time.perf_counter() - start


@torch.no_grad()
def accuracy(net, dataset, rank, world_size):
    net.eval()
    counts = torch.zeros(2, dtype=torch.int64)
    for images, labels in whole_batches(dataset, range(rank, len(dataset), world_size), 500):
        counts += torch.tensor([(net(images).argmax(1) == labels).sum(), len(labels)])
    add_over_ranks(counts)
    return counts[0].item() / counts[1].item()


def parse_flags():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=128, help="images a step, on each rank")
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data-dir", type=pathlib.Path, default=pathlib.Path(".data/mnist"))
    parser.add_argument("--max-steps", type=int, default=0, help="stop each epoch after so many steps; 0: all")
    parser.add_argument("--log-interval", type=int, default=0, help="print a line every so many steps; 0: never")
    parser.add_argument("--no-ddp", action="store_true", help="train the bare module")
    parser.add_argument("--amp", choices=TYPES, default="none", help="compute in this type where that is enough")
    parser.add_argument("--channels-last", action="store_true", help="lay out images and convolutions so")
    parser.add_argument("--compile", action="store_true", help="train the net that torch.compile makes")
    parser.add_argument("--json", action="store_true", help="one JSON object an epoch instead of text")
    return parser.parse_args()


def main():
    flags = parse_flags()
    rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    train_set, test_set = Images(flags.data_dir, "train"), Images(flags.data_dir, "t10k")
    torch.manual_seed(flags.seed)
    net = model = MnistNet()
    if flags.channels_last:
        net.to(memory_format=torch.channels_last)
    if not flags.no_ddp:
        dist.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(net)
    if flags.compile:
        model = torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=flags.lr)
    scaler = torch.amp.GradScaler("cpu", enabled=flags.amp == "fp16")
    sampler = DistributedSampler(train_set, world_size, rank, shuffle=True, seed=flags.seed)
    loader = whole_batches(train_set, sampler, flags.batch_size)
    for epoch in range(1, flags.epochs + 1):
        sampler.set_epoch(epoch)
        loss, samples, seconds = train_epoch(model, loader, optimizer, scaler, flags)
        result = {"epoch": epoch, "loss": loss, "accuracy": accuracy(net, test_set, rank, world_size),
                  "seconds": seconds, "samples_per_second": samples / seconds, "world_size": world_size}
        if rank == 0 and flags.json:
            print(json.dumps(result), flush=True)
        elif rank == 0:
            print(f"epoch {epoch}/{flags.epochs}: loss {loss:.4f}, test accuracy {100 * result['accuracy']:.2f}%, "
                  f"{seconds:.1f} s, {samples / seconds:.0f} images/s", flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
