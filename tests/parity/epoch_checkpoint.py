# SPDX-License-Identifier: BSD-3-Clause
"""The twin of epoch_checkpoint_test.cpp, with the layout of PyTorch's ImageNet example:

epoch_checkpoint.py train <file to go on from or -> <until> <file to write> <form of best_acc>
epoch_checkpoint.py compare <written by Python> <to be equal>..."""
import sys

import torch
from torch import nn

FORMS = {"float": float, "int": int, "tensor": torch.tensor, "example": torch.tensor}


def train(source, until, target, form):
    torch.set_num_threads(1)
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    # Its defaults are ints, which C++ does not have among the options.
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, dampening=0.0, weight_decay=0.0)
    epoch, best = 0, 0.0
    if source != "-":
        saved = torch.load(source, weights_only=True)
        net.load_state_dict(saved["state_dict"])
        optimizer.load_state_dict(saved["optimizer"])
        epoch, best = saved["epoch"], saved["best_acc"]
    for epoch in range(epoch + 1, int(until) + 1):
        optimizer.zero_grad()
        inputs = torch.sin(torch.arange(5 * 8, dtype=torch.float64) + epoch).float().view(5, 8)
        nn.functional.cross_entropy(net(inputs), torch.arange(5) % 3).backward()
        optimizer.step()
        best = max(best, 10.0 * epoch)
    contents = {"epoch": epoch, "arch": "sequential", "state_dict": net.state_dict(), "best_acc": FORMS[form](best),
                "optimizer": optimizer.state_dict()}
    if form == "example":  # as that of today
        contents["state_dict"] = nn.DataParallel(net).state_dict()
        contents["best_acc1"] = contents.pop("best_acc")
        contents["scheduler"] = torch.optim.lr_scheduler.StepLR(optimizer, 30).state_dict()
    torch.save(contents, target)


def check_same(ours, theirs, path):
    assert type(ours) is type(theirs), f"{path}: {type(ours)} {type(theirs)}"
    if isinstance(theirs, torch.Tensor):
        assert ours.dtype == theirs.dtype and torch.equal(ours, theirs), path
    elif isinstance(theirs, dict):
        assert list(ours) == list(theirs), f"{path}: {list(ours)} {list(theirs)}"
        for key in theirs:
            check_same(ours[key], theirs[key], f"{path}.{key}")
    elif isinstance(theirs, list):
        assert len(ours) == len(theirs), path
        for index, value in enumerate(theirs):
            check_same(ours[index], value, f"{path}[{index}]")
    else:
        assert ours == theirs, f"{path}: {ours} {theirs}"


def contents_of(file):
    contents = torch.load(file, weights_only=True)
    # The options of a group have no order that means anything.
    groups = contents["optimizer"]["param_groups"]
    contents["optimizer"]["param_groups"] = [dict(sorted(group.items())) for group in groups]
    return contents


def compare(whole, *files):
    for file in files:
        check_same(contents_of(file), contents_of(whole), file)


{"train": train, "compare": compare}[sys.argv[1]](*sys.argv[2:])
