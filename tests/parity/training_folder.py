# SPDX-License-Identifier: BSD-3-Clause
"""Runs that go on in the other language, from one checkpoint folder: training_folder.py <training_folder program>"""

import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import torch
from torch import nn

from lockstep_checkpoint import CheckpointError, CheckpointManager, TrainingState


def train(folder, last):
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(5, 7), nn.Dropout(0.5), nn.Linear(7, 2))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    training = TrainingState()
    training.add("model", net).add("optimizer", optimizer).add("scheduler", scheduler).add("step", 0)
    training.add("name", "first").add_generator()
    manager = CheckpointManager(folder, keep_last=2, higher_is_better=False, sync=False)
    found = manager.load_latest()
    if found:
        training.load_state_dict(found.contents)
    while training["step"] < last:
        optimizer.zero_grad()
        net(torch.rand(4, 5)).square().mean().backward()
        optimizer.step()
        scheduler.step()
        training["step"] += 1
        manager.save(training["step"], training.state_dict(), metric=torch.tensor(training["step"] * 3 % 4 / 8))


def difference(left, right, path=""):
    """The path of the first difference, or None."""
    if isinstance(left, torch.Tensor):
        return None if torch.equal(left, right) else path
    if isinstance(left, dict) and left.keys() == right.keys():
        found = (difference(left[key], right[key], f"{path}/{key}") for key in left)
    elif isinstance(left, (list, tuple)) and len(left) == len(right):
        found = (difference(one, other, f"{path}/{i}") for i, (one, other) in enumerate(zip(left, right)))
    else:
        return None if left == right else f"{path}: {left} {right}"
    return next(filter(None, found), None)


def contents_of(folder):
    """All that two runs must have in common: names, links, metrics and what the checkpoints hold."""
    files = {path.name: os.readlink(path) if path.is_symlink() else path for path in Path(folder).iterdir()}
    for name, path in files.items():
        if isinstance(path, Path):
            files[name] = path.read_text() if path.suffix == ".json" else torch.load(path)
    for state in files.values():
        if isinstance(state, dict):  # schedulers have fields of their own in each language
            state["scheduler"] = state["scheduler"]["last_epoch"], state["scheduler"]["_last_lr"]
            state["optimizer"] = state["optimizer"]["state"]
    return files


def check_damage(folder):
    """A damaged checkpoint is skipped, and a step below the latest is refused."""
    manager = CheckpointManager(folder, sync=False)
    latest = manager.checkpoints()[-1]
    data = bytearray(latest.file.read_bytes())
    data[len(data) // 2] ^= 1
    latest.file.write_bytes(data)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        found = manager.load_latest()
    assert found.info.step == latest.step - 1 and "skipping a damaged checkpoint" in str(seen[0].message), seen
    try:
        CheckpointManager(folder).save(0, {})
        raise SystemExit("a step below the latest was saved")
    except CheckpointError as error:
        assert "start with load_latest()" in str(error), error


def main(program):
    languages = {"python": train, "c++": lambda folder, last: subprocess.run([program, folder, str(last)], check=True)}
    with tempfile.TemporaryDirectory() as root:
        folders = {}
        for first in languages:
            for second in languages:
                folder = folders[first, second] = os.path.join(root, first + second)
                languages[first](folder, 3)
                languages[second](folder, 6)
        expected = contents_of(folders["python", "python"])
        assert set(expected) == {"best.pt", "last.pt", "metrics.json", *(f"step-0000000{i}.pt" for i in (4, 5, 6))}
        for pair, folder in folders.items():
            found = difference(contents_of(folder), expected)
            if found:
                sys.exit(f"{pair}: {found} differs from the run in Python alone")
        check_damage(folders["c++", "python"])


if __name__ == "__main__":
    main(*sys.argv[1:])
