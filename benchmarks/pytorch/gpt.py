# SPDX-License-Identifier: BSD-3-Clause
"""The Python counterpart of examples/gpt.cpp: the same text, model, seeds, order and steps, hence the same losses.

    torchrun --nproc-per-node 2 benchmarks/pytorch/gpt.py --text README.md"""
import argparse
import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

# transformers imports these where they are installed; it needs none of them here.
for name in ("PIL", "scipy", "sklearn", "torchvision"):
    sys.modules[name] = None
from transformers import GPT2Config, GPT2LMHeadModel  # noqa: E402


def tokens_of(file):
    """The bytes of the file as 0, 1, ... in the order of C++'s char, and their number."""
    text = torch.frombuffer(bytearray(open(file, "rb").read()), dtype=torch.int8).long()
    distinct = text.unique()
    return torch.searchsorted(distinct, text), len(distinct)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", default="README.md")
    for name, default in {"steps": 300, "batch-size": 8, "accumulate": 2, "context": 64, "layers": 4, "width": 128,
                          "seed": 0}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--save", help="file for the trained weights")
    parser.add_argument("--bf16", action="store_true")
    flags = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(flags.seed)
    tokens, vocabulary = tokens_of(flags.text)
    both = tokens[:len(tokens) * 9 // 10].unfold(0, flags.context + 1, 1)
    windows = TensorDataset(both[:, :-1], both[:, 1:])
    sampler = DistributedSampler(windows, seed=flags.seed)
    loader = DataLoader(windows, flags.batch_size, sampler=sampler)
    net = GPT2LMHeadModel(GPT2Config(vocab_size=vocabulary, n_positions=flags.context, n_embd=flags.width, n_layer=flags.layers,
                                     n_head=flags.width // 32, bos_token_id=None, eos_token_id=None, use_cache=False,
                                     activation_function="gelu_pytorch_tanh"))  # as in C++; the default is slower
    ddp = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(net.parameters(), flags.lr, weight_decay=0.1, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, flags.steps, flags.lr / 10)
    net.train()

    def backward(inputs, targets):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=flags.bf16):
            loss = F.cross_entropy(ddp(inputs).logits.flatten(0, 1), targets.flatten()) / flags.accumulate
        loss.backward()
        return loss.detach()

    losses, parts = [], []
    start = time.perf_counter()
    for batch, (inputs, targets) in enumerate(loader):
        if (batch + 1) % flags.accumulate:
            with ddp.no_sync():
                parts.append(backward(inputs, targets))
            continue
        loss = sum(parts, backward(inputs, targets))
        parts = []
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        losses.append(loss.item())
        if len(losses) == flags.steps:
            break
    seconds = torch.tensor(time.perf_counter() - start)
    mean = torch.tensor(losses, dtype=torch.float64)
    dist.all_reduce(mean)
    dist.all_reduce(seconds)
    if dist.get_rank() == 0 and flags.save:
        torch.save(net.state_dict(), flags.save)
    if dist.get_rank() == 0:
        numbers = flags.steps * flags.batch_size * flags.accumulate * flags.context
        print(json.dumps({"tokens_per_second": numbers * dist.get_world_size() ** 2 / seconds.item(),
                          "losses": (mean / dist.get_world_size()).view(-1, 10).mean(1).tolist()}))
    sys.stdout.flush()
    os._exit(0)  # the destructors of DDP and its Gloo group, which run with the GIL, can wait for each other forever


if __name__ == "__main__":
    main()
