# SPDX-License-Identifier: BSD-3-Clause
"""Prints what DataLoader yields and what a training loop around it draws from the default
generator, one case a line: kind name=value ... : numbers. A -1 ends a batch, and the dropout mask of that batch
follows it."""
import random

import torch
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, TensorDataset

draw = random.Random(7)
SAMPLERS = ("default", "distributed", "random_replacement", "random_own_generator")
MASK = 6


def sampler_of(arguments, dataset):
    name = SAMPLERS[arguments["sampler"]]
    if name == "distributed":
        return DistributedSampler(dataset, 3, 1, seed=5)
    if name == "random_replacement":
        return RandomSampler(dataset, replacement=True, num_samples=2 * len(dataset))
    if name == "random_own_generator":
        return RandomSampler(dataset, generator=torch.Generator().manual_seed(arguments["manual_seed"] + 1))
    return None


def loader_case(arguments):
    values = torch.arange(arguments["n"])
    dataset = TensorDataset(values, values * 10)
    torch.manual_seed(arguments["manual_seed"])
    sampler = sampler_of(arguments, dataset)
    shuffle = bool(arguments["shuffle"]) and sampler is None
    generator = torch.Generator().manual_seed(11) if arguments["generator"] else None
    loader = DataLoader(dataset, arguments["batch_size"], shuffle, sampler, drop_last=bool(arguments["drop_last"]),
                        generator=generator, num_workers=arguments["workers"],
                        persistent_workers=bool(arguments["persistent"]))
    arguments["length"] = len(loader)
    numbers = []
    for epoch in range(3):
        if isinstance(sampler, DistributedSampler):
            sampler.set_epoch(epoch)
        for step, (data, target) in enumerate(loader):
            assert torch.equal(data * 10, target)
            mask = torch.nn.functional.dropout(torch.ones(MASK), 0.5, True)
            numbers += [*data.tolist(), -1, *mask.to(torch.int64).tolist()]
            if step + 1 == arguments["stop_after"]:
                break
    print("loader", *(f"{name}={int(value)}" for name, value in arguments.items()), ":", *numbers)


def normalize_case(mean, std):
    values = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).repeat(1, len(mean), 1, 1)
    images = values.to(torch.float32).div(255)
    images.sub_(torch.tensor(mean).view(-1, 1, 1)).div_(torch.tensor(std).view(-1, 1, 1))
    scaled = {f"mean{i}": round(m * 10000) for i, m in enumerate(mean)} | {
        f"std{i}": round(s * 10000) for i, s in enumerate(std)}
    arguments = {"channels": len(mean)} | scaled
    print("normalize", *(f"{name}={value}" for name, value in arguments.items()), ":",
          *images.view(torch.int32).flatten().tolist())


if __name__ == "__main__":
    torch.set_num_threads(1)
    for number in range(120):
        workers = draw.randrange(1, 3) if number % 6 == 0 else 0
        loader_case({
            "workers": workers,
            "persistent": bool(workers) and draw.random() < 0.5,
            "manual_seed": draw.randrange(2**31),
            "n": draw.choice([1, 2, 10, draw.randrange(1, 120)]),
            "batch_size": draw.choice([1, 4, draw.randrange(1, 40)]),
            "drop_last": draw.random() < 0.5,
            "shuffle": draw.random() < 0.7,
            "generator": draw.random() < 0.3,
            "sampler": draw.choice([0, 0, 0, 1, 2, 3]),
            "stop_after": draw.choice([-1, -1, draw.randrange(1, 4)]),
        })
    normalize_case([0.5], [0.5])
    normalize_case([0.1307], [0.3081])
    normalize_case([0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616])
