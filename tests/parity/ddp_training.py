# SPDX-License-Identifier: BSD-3-Clause
"""ddp_training.cpp in Python: ddp_training.py <folder> <world size> runs every case of <folder>/cases on that many
ranks over Gloo, and writes the results of each rank to <folder>/<case>.<rank>."""
import contextlib
import ctypes
import datetime
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import models

SEED = 17


class Images(Dataset):
    """Like torchvision: images one at a time, converted and normalized."""

    def __init__(self):
        source = torch.Generator().manual_seed(1)
        self.images = torch.randint(256, (403, 28, 28), generator=source, dtype=torch.uint8)
        self.labels = torch.randint(10, (403,), generator=source)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.images[index].unsqueeze(0).to(torch.float32).div(255)
        return image.sub_(torch.tensor(0.5)).div_(torch.tensor(0.5)), self.labels[index]


class Training:
    def __init__(self, case, ddp):
        self.case = case
        self.ddp = ddp
        self.optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-2)
        self.losses = []

    def drawn_batches(self):
        case = self.case
        source = torch.Generator().manual_seed(1000 + dist.get_rank())
        micro_steps = int(case["micro_steps"])
        for step in range(int(case["steps"])):
            self.optimizer.zero_grad(set_to_none=case["set_to_none"] == "1")
            for micro in range(micro_steps):
                with self.ddp.no_sync() if micro + 1 < micro_steps else contextlib.nullcontext():
                    self.backward(*self.draw_batch(source))
            self.optimizer.step()
            if case["probe_every"] != "0" and step % int(case["probe_every"]) == 0:
                with torch.no_grad():
                    images, labels = self.draw_batch(source)
                    self.losses.append(F.cross_entropy(self.ddp(images), labels).item())

    def two_epochs(self):
        dataset = Images()
        sampler = DistributedSampler(dataset, shuffle=True, seed=3)
        loader = DataLoader(dataset, int(self.case["batch_size"]), sampler=sampler)
        for epoch in range(2):
            sampler.set_epoch(epoch)
            for images, labels in loader:
                self.optimizer.zero_grad(set_to_none=self.case["set_to_none"] == "1")
                self.backward(images, labels)
                self.optimizer.step()

    def draw_batch(self, source):
        size = int(self.case["batch_size"])
        return torch.randn(size, 1, 28, 28, generator=source), torch.randint(10, (size,), generator=source)

    def backward(self, images, labels):
        loss = F.cross_entropy(self.ddp(images), labels)
        loss.backward()
        self.losses.append(loss.item())


def train(case):
    torch.manual_seed(SEED + (dist.get_rank() if case["seed_by_rank"] == "1" else 0))
    net = models.MnistNet() if case["net"] == "mnist" else models.TiedNet()
    if case["gradients_first"] == "1":
        net(torch.ones(2, 1, 28, 28)).square().mean().backward()
    cap = float(case["bucket_cap_mb"])
    ddp = nn.parallel.DistributedDataParallel(
        net, bucket_cap_mb=cap if cap > 0 else None, gradient_as_bucket_view=case["gradient_as_bucket_view"] == "1")
    training = Training(case, ddp)
    training.two_epochs() if case["loader"] == "1" else training.drawn_batches()
    records = [("losses", torch.tensor(training.losses)), *ddp.named_parameters(), *ddp.named_buffers()]
    if dist.get_world_size() > 1:
        sizes = ddp._get_ddp_logging_data()["rebuilt_bucket_sizes"]
        records.append(("rebuilt_bucket_sizes", torch.tensor([int(size) for size in sizes.split(",")])))
    return records


def write_records(path, records):
    with open(path, "wb") as file:
        for name, tensor in records:
            values = tensor.detach().to(torch.float32).contiguous()
            file.write(f"{name} {values.numel()}\n".encode())
            file.write(ctypes.string_at(values.data_ptr(), values.numel() * 4))


def run_rank(rank, folder, world_size, run_case):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world_size,
                            timeout=datetime.timedelta(seconds=60))
    with open(f"{folder}/cases") as lines:
        cases = [dict(word.split("=") for word in line.split()) for line in lines]
    for case in cases:
        write_records(f"{folder}/{case['name']}.{rank}", run_case(case))
    dist.destroy_process_group()


def run_everywhere(folder, world_size, run_case):
    # Forked, so that importing torch is paid once.
    torch.multiprocessing.start_processes(run_rank, (folder, world_size, run_case), nprocs=world_size,
                                          start_method="fork")


if __name__ == "__main__":
    run_everywhere(sys.argv[1], int(sys.argv[2]), train)
