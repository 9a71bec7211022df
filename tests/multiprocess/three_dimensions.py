# SPDX-License-Identifier: BSD-3-Clause
"""three_dimensions.py <folder>...: plain PyTorch in one process continues from the checkpoint that 2 x 2 x 2 ranks of C++ wrote.
<folder>.pt has what C++ loads from it in one process, and the parameters after further steps with the same samples."""
import sys

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions, get_model_state_dict, get_optimizer_state_dict, set_model_state_dict, set_optimizer_state_dict)
from torch.nn import functional as F

FLAT = StateDictOptions(flatten_optimizer_state_dict=True)
WIDTH, HEAD_DIM, BLOCKS, MAX_NORM = 16, 4, 4, 0.05


class Block(nn.Module):
    """ParallelBlock of support/parallel_net.h, without dropout."""

    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.fc1, self.fc2 = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        normed = self.ln1(x)
        q, k, v = (f(normed).unflatten(-1, (-1, HEAD_DIM)).transpose(1, 2) for f in (self.q, self.k, self.v))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.fc2(F.gelu(self.fc1(self.ln2(x))))


def load(folder):
    net = nn.Sequential(*(Block() for _ in range(BLOCKS)))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.5)  # the rate comes from the checkpoint
    state = {"model": get_model_state_dict(net), "optimizer": get_optimizer_state_dict(net, optimizer, options=FLAT)}
    dcp.load(state, checkpoint_id=folder, no_dist=True)
    set_model_state_dict(net, state["model"])
    set_optimizer_state_dict(net, optimizer, state["optimizer"], options=FLAT)
    return net, optimizer


def check_loaded(net, optimizer, expected):
    model = net.state_dict()
    assert model.keys() == expected["model"].keys(), model.keys() ^ expected["model"].keys()
    for name, value in expected["model"].items():
        assert torch.equal(model[name], value), name
    flat = get_optimizer_state_dict(net, optimizer, options=FLAT)
    # Options of a group are other ones in C++.
    states = {name for name in expected["optimizer"] if name.startswith("state.")}
    assert states == {name for name in flat if name.startswith("state.")}, states ^ flat.keys()
    assert len(states) == 3 * len(model)
    for name in states:
        assert torch.equal(flat[name], expected["optimizer"][name]), name
    for option in ("lr", "eps", "weight_decay"):
        name = f"param_groups.0.q.weight.{option}"
        assert flat[name] == expected["optimizer"][name], (name, flat[name])


def go_on(net, optimizer, samples):
    for x, target in samples:
        optimizer.zero_grad()
        F.mse_loss(net(x), target).backward()
        nn.utils.clip_grad_norm_(net.parameters(), MAX_NORM)
        optimizer.step()


def main():
    for folder in sys.argv[1:]:
        expected = torch.load(f"{folder}.pt")
        net, optimizer = load(folder)
        check_loaded(net, optimizer, expected["loaded"])
        go_on(net, optimizer, expected["samples"])
        for name, value in net.state_dict().items():
            # Attention does not depend on the bias of its keys, whose gradient is what rounding leaves of zero.
            if not name.endswith(".k.bias"):
                torch.testing.assert_close(value, expected["after"][name], rtol=0, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")


if __name__ == "__main__":
    main()
