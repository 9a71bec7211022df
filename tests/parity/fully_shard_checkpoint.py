# SPDX-License-Identifier: BSD-3-Clause
"""fully_shard_checkpoint.py <folder> <rows or columns>: three ranks load C++'s checkpoint a, train a step and save b."""
import sys
import warnings

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions, get_model_state_dict, get_optimizer_state_dict, set_model_state_dict, set_optimizer_state_dict)
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard

from ddp_training import run_everywhere
from fully_shard import OddNet

FULL = StateDictOptions(full_state_dict=True, cpu_offload=True)
FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


def flatten(values, prefix=""):
    if not isinstance(values, dict):
        return {prefix: values}
    return {path: value for key, each in values.items() for path, value in flatten(each, f"{prefix}.{key}").items()}


def compare(ours, expected):
    ours, expected = flatten(ours), flatten(expected)
    missing = {key for key in expected.keys() ^ ours.keys() if ".param_groups" not in key}
    assert not missing, missing
    for key, value in expected.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(ours[key], value), key


def columns(parameter):
    return Shard(-1) if parameter.dim() > 1 and parameter.size(-1) % torch.distributed.get_world_size() == 0 else None


def refuse_unexpected_keys(net, model):
    """The C++ test expects the same of Lockstep."""
    longer = {**model, "extra": torch.ones(5)}
    try:
        set_model_state_dict(net, longer)
    except RuntimeError as error:
        assert 'Unexpected key(s) in state_dict: "extra"' in str(error), error
    else:
        raise AssertionError("an unexpected key was no error")
    result = set_model_state_dict(net, longer, options=StateDictOptions(strict=False))
    assert result.unexpected_keys == ["extra"], result


def run_case(case):
    folder = case["folder"]
    net = OddNet()
    placement = columns if case["placement"] == "columns" else None
    for child in net.children_to_shard():
        fully_shard(child, shard_placement_fn=placement)
    fully_shard(net, shard_placement_fn=placement)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, fused=True)
    state = {"model": get_model_state_dict(net), "optim": get_optimizer_state_dict(net, optimizer),
             "flat": get_optimizer_state_dict(net, optimizer, options=FLAT)}
    dcp.load(state, checkpoint_id=f"{folder}/a")
    set_model_state_dict(net, state["model"])
    refuse_unexpected_keys(net, state["model"])
    set_optimizer_state_dict(net, optimizer, state["optim"])
    from_nested = get_optimizer_state_dict(net, optimizer, options=FULL)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)
    set_optimizer_state_dict(net, optimizer, state["flat"], options=FLAT)
    assert optimizer.param_groups[0]["lr"] == 1e-2
    compare(get_optimizer_state_dict(net, optimizer, options=FULL), from_nested)
    model, optim = get_model_state_dict(net, options=FULL), get_optimizer_state_dict(net, optimizer, options=FULL)
    if torch.distributed.get_rank() == 0:
        saved = torch.load(f"{folder}/a.pt")
        compare(model, saved["model"])
        compare(optim["state"], saved["optim"]["state"])
    net(torch.arange(8).view(2, 4), True).backward()
    optimizer.step()
    dcp.save({"model": get_model_state_dict(net), "optim": get_optimizer_state_dict(net, optimizer),
              "flat": get_optimizer_state_dict(net, optimizer, options=FLAT)},
             checkpoint_id=f"{folder}/b")
    full = {"model": get_model_state_dict(net, options=FULL), "optim": get_optimizer_state_dict(net, optimizer, options=FULL)}
    if torch.distributed.get_rank() == 0:
        torch.save(full, f"{folder}/b.pt")
    return []


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    with open(f"{sys.argv[1]}/cases", "w") as cases:
        cases.write(f"name=checkpoint folder={sys.argv[1]} placement={sys.argv[2]}\n")
    run_everywhere(sys.argv[1], 3, run_case)
