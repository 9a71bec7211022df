# SPDX-License-Identifier: BSD-3-Clause
"""The twin of resume_training.h on one process: resume_training.py <until> <file to continue from or -> <file to write>"""
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

SAMPLES = 203


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16)
        self.dropout = nn.Dropout(0.3)
        self.second = nn.Linear(16, 3)

    def forward(self, x):
        return self.second(self.dropout(torch.relu(self.norm(self.first(x)))))


def main():
    torch.set_num_threads(1)
    until, source, target = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    torch.manual_seed(1)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.7)
    data = TensorDataset(torch.sin(torch.arange(SAMPLES * 8, dtype=torch.float64)).float().view(SAMPLES, 8),
                         torch.arange(SAMPLES) % 3)
    sampler = DistributedSampler(data, num_replicas=1, rank=0, shuffle=True, seed=3)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    epoch = step = batches = skip = 0
    if source != "-":
        saved = torch.load(source, weights_only=True)
        net.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        scheduler.load_state_dict(saved["scheduler"])
        epoch, step, skip = saved["epoch"], saved["step"], saved["loader"]["batches"]
        torch.set_rng_state(saved["generator"][0])
    while step < until:
        sampler.set_epoch(epoch)
        now = torch.get_rng_state()
        if skip:
            torch.set_rng_state(saved["loader"]["pass_generator"])
        pass_generator = torch.get_rng_state()
        done = skip
        stream = iter(loader)
        for _ in range(skip):
            next(stream)
        if skip:
            torch.set_rng_state(now)
            skip = 0
        for inputs, labels in stream:
            done += 1
            (nn.functional.cross_entropy(net(inputs), labels) / 2).backward()
            batches += 1
            if batches % 2 != 0:
                continue
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step % 5 == 0:
                scheduler.step()
            if step == until:
                break
        else:
            epoch += 1
    torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict(),
                "loader": {"epoch": epoch, "batches": done, "samples": 4 * done, "pass_generator": pass_generator},
                "epoch": epoch, "step": step, "generator": {0: torch.get_rng_state()}}, target)


if __name__ == "__main__":
    main()
