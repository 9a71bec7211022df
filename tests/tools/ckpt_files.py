# SPDX-License-Identifier: BSD-3-Clause
"""The files for the tests of `lockstep ckpt`: ckpt_files.py make <folder> | ckpt_files.py check <folder> <what>...

make:  writes them, as Python does.
check: compares what the command has made of them with what Python makes; ends with an error that tells what differs.
"""

import os
import sys

import safetensors
import safetensors.torch
import torch
from torch import nn


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 2))


def plain():
    return dict(net().state_dict())


def changed():
    state = plain()
    state["0.weight"] = state["0.weight"].clone()
    state["0.weight"][0, 0, 0, 0] += 0.5
    state["0.weight"][7, 2, 2, 2] -= 0.25
    state["1.bias"] = state["1.bias"].half()
    state["2.weight"] = state["2.weight"].reshape(4, 4)
    del state["2.bias"]
    state["extra"] = torch.ones(3)
    return state


def run():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    return {"epoch": 3, "arch": "small", "state_dict": model.state_dict(), "ema": {"model": model.state_dict()},
            "optimizer": optimizer.state_dict()}


def tied():
    weight = torch.arange(12.0).reshape(4, 3)
    return {"wte.weight": weight, "lm_head.weight": weight, "bias": torch.ones(4)}


def halves():
    items = list(plain().items())
    return dict(items[:5]), dict(items[4:])


def damaged(path):
    """A file in which one number is not the one that was saved."""
    marker = torch.tensor([1234.5])
    torch.save({"x": marker}, path)
    with open(path, "rb") as file:
        content = file.read()
    before, after = marker.numpy().tobytes(), (-marker).numpy().tobytes()
    assert content.count(before) == 1
    with open(path, "wb") as file:
        file.write(content.replace(before, after))


def make(folder):
    def at(name):
        return os.path.join(folder, name)

    first, second = halves()
    torch.save(run(), at("run.pt"))
    torch.save(plain(), at("model.pt"))
    torch.save(plain(), at("legacy.pth"), _use_new_zipfile_serialization=False)
    safetensors.torch.save_file(plain(), at("model.safetensors"), metadata={"author": "me"})
    torch.save(changed(), at("changed.pt"))
    damaged(at("damaged.pt"))
    torch.save(tied(), at("tied.bin"))
    torch.save(nn.DataParallel(net()).state_dict(), at("parallel.pt"))
    torch.save({"epoch": 1, "state_dict": nn.DataParallel(net()).state_dict()}, at("parallel_run.pt"))
    safetensors.torch.save_file(first, at("first.safetensors"))
    torch.save(second, at("second.pt"))


def same(tensors, expected):
    assert list(tensors) == list(expected), (list(tensors), list(expected))
    for name, tensor in expected.items():
        assert tensors[name].dtype == tensor.dtype and torch.equal(tensors[name], tensor), name


def same_names_and_tensors(path, expected):
    same(dict(sorted(safetensors.torch.load_file(path).items())), dict(sorted(expected.items())))


def metadata_of(path):
    with safetensors.safe_open(path, framework="pt") as opened:
        return opened.metadata()


def check_converted(folder):
    path = os.path.join(folder, "converted.safetensors")
    same_names_and_tensors(path, plain())
    assert metadata_of(path) == {"format": "pt"}, metadata_of(path)


def check_back(folder):
    loaded = torch.load(os.path.join(folder, "back.pt"), weights_only=True)
    same(dict(sorted(loaded.items())), dict(sorted(plain().items())))


def check_nested(folder):
    state = torch.load(os.path.join(folder, "nested.ckpt"), weights_only=True)
    same(state, net().state_dict())
    assert state._metadata == net().state_dict()._metadata


def check_untied(folder):
    same_names_and_tensors(os.path.join(folder, "untied.safetensors"), tied())


def check_stripped(folder):
    state = torch.load(os.path.join(folder, "stripped.pt"), weights_only=True)
    expected = nn.DataParallel(net()).state_dict()
    nn.modules.utils.consume_prefix_in_state_dict_if_present(expected, "module.")
    same(state, expected)
    assert dict(state._metadata) == dict(expected._metadata), (state._metadata, expected._metadata)
    net().load_state_dict(state, strict=True)


def check_stripped_run(folder):
    saved = torch.load(os.path.join(folder, "stripped_run.pt"), weights_only=True)
    assert saved["epoch"] == 1
    same(saved["state_dict"], net().state_dict())


def check_merged(folder):
    same_names_and_tensors(os.path.join(folder, "merged.safetensors"), plain())


def main():
    what, folder = sys.argv[1:3]
    if what == "make":
        make(folder)
    for name in sys.argv[3:]:
        globals()["check_" + name](folder)
        print(name)


if __name__ == "__main__":
    main()
