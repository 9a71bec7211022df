# SPDX-License-Identifier: BSD-3-Clause
"""Prints what PyTorch's samplers yield for many drawn arguments, one case a line:
kind name=value ... : indices. What was left undetermined by the arguments (the states of generators afterwards)
is printed too, as the next number that the generator gives."""
import random

import torch
from torch.utils.data import (BatchSampler, DistributedSampler, RandomSampler, SequentialSampler, SubsetRandomSampler,
                              WeightedRandomSampler)

draw = random.Random(20240229)


def show(kind, arguments, indices):
    print(kind, *(f"{name}={int(value)}" for name, value in arguments.items()), ":", *indices)


def next_number(generator=None):
    return torch.empty((), dtype=torch.int64).random_(generator=generator).item()


def distributed(arguments):
    data = range(arguments["n"])
    names = ("rank", "seed", "drop_last", "shuffle")
    sampler = DistributedSampler(data, arguments["world"], **{name: arguments[name] for name in names})
    sampler.set_epoch(arguments["epoch"])
    assert len(sampler) == len(list(sampler))
    show("distributed", arguments, sampler)


def distributed_cases(count):
    for _ in range(count):
        world = draw.choice([1, 2, 3, 4, 5, 7, 8, 16, 61])
        distributed({
            "n": draw.choice([1, 2, 3, world, 2 * world, draw.randrange(1, 3 * world + 1), draw.randrange(1, 1500)]),
            "world": world,
            "rank": draw.randrange(world),
            "seed": draw.choice([0, 1, draw.randrange(2**31), draw.randrange(2**40), -draw.randrange(1, 1000)]),
            "epoch": draw.choice([0, 1, draw.randrange(300)]),
            "drop_last": draw.random() < 0.5,
            "shuffle": draw.random() < 0.75,
        })
    # What MNIST on two ranks uses, and the other way in which LibTorch makes large permutations.
    for rank in (0, 1):
        distributed({"n": 60000, "world": 2, "rank": rank, "seed": 0, "epoch": 3, "drop_last": False, "shuffle": True})


def random_cases(count):
    for _ in range(count):
        n = draw.choice([1, 2, 31, 32, 33, draw.randrange(1, 400)])
        arguments = {
            "n": n,
            "replacement": draw.random() < 0.5,
            "num_samples": draw.choice([-1, 1, n, 2 * n, 64, draw.randrange(1, 3 * n + 1)]),
            "default_seed": draw.randrange(2**31),
            "own_seed": draw.choice([-1, draw.randrange(2**31)]),
        }
        own = None if arguments["own_seed"] < 0 else torch.Generator().manual_seed(arguments["own_seed"])
        torch.manual_seed(arguments["default_seed"])
        wanted = None if arguments["num_samples"] < 0 else arguments["num_samples"]
        sampler = RandomSampler(range(n), arguments["replacement"], wanted, own)
        indices = [index for _ in range(2) for index in sampler]
        arguments["length"] = len(sampler)
        arguments["default_next"] = next_number()
        arguments["own_next"] = -1 if own is None else next_number(own)
        show("random", arguments, indices)


def two_passes(kind, arguments, numbers, make_sampler):
    """Shows the given numbers, -1, and the indices of two passes, the second taken only in part."""
    arguments["default_seed"] = draw.randrange(2**31)
    arguments["own_seed"] = draw.choice([-1, draw.randrange(2**31)])
    own = None if arguments["own_seed"] < 0 else torch.Generator().manual_seed(arguments["own_seed"])
    torch.manual_seed(arguments["default_seed"])
    sampler = make_sampler(own)
    indices = list(sampler)
    arguments["taken"] = draw.randrange(len(sampler) + 1)
    indices += [index for _, index in zip(range(arguments["taken"]), sampler)]
    arguments["length"] = len(sampler)
    arguments["default_next"] = next_number()
    arguments["own_next"] = -1 if own is None else next_number(own)
    show(kind, arguments, [*numbers, -1, *indices])


def subset_cases(count):
    for _ in range(count):
        indices = [draw.randrange(10**6) for _ in range(draw.choice([0, 1, 2, draw.randrange(1, 300)]))]
        two_passes("subset", {}, indices, lambda own: SubsetRandomSampler(indices, own))


def weighted_cases(count):
    for _ in range(count):
        n = draw.choice([1, 2, draw.randrange(1, 200)])
        # In thousandths, so that a line of integers describes them.
        thousandths = [draw.choice([0, 1, 1000, draw.randrange(10**6)]) for _ in range(n)]
        thousandths[draw.randrange(n)] += 1
        replacement = draw.random() < 0.5
        num_samples = draw.choice([1, n, draw.randrange(1, n + 1)] + ([3 * n] if replacement else []))
        weights = [weight / 1000 for weight in thousandths]
        two_passes("weighted", {"num_samples": num_samples, "replacement": replacement}, thousandths,
                   lambda own: WeightedRandomSampler(weights, num_samples, replacement, own))


def batch_cases(count):
    for _ in range(count):
        n = draw.choice([0, 1, 8, draw.randrange(1, 200)])
        shuffle = n > 0 and draw.random() < 0.5
        arguments = {
            "n": n,
            "shuffle": shuffle,
            "batch_size": draw.choice([1, 2, 8, draw.randrange(1, 210)]),
            "drop_last": draw.random() < 0.5,
            "default_seed": draw.randrange(2**31),
        }
        torch.manual_seed(arguments["default_seed"])
        inner = RandomSampler(range(n)) if shuffle else SequentialSampler(range(n))
        sampler = BatchSampler(inner, arguments["batch_size"], arguments["drop_last"])
        arguments["length"] = len(sampler)
        # -1 ends a batch.
        show("batch", arguments, [index for batch in sampler for index in [*batch, -1]])


if __name__ == "__main__":
    distributed_cases(500)
    random_cases(150)
    subset_cases(500)
    weighted_cases(500)
    batch_cases(100)
