# SPDX-License-Identifier: BSD-3-Clause
"""The Python twin of gpu_training.cpp: the same nets, data and steps; --mode compile is torch.compile of the net."""
import argparse
import contextlib
import json
import os
import pathlib
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "parity"))
import models  # noqa: E402


def conv(in_channels, out_channels, kernel, stride=1):
    return nn.Conv2d(in_channels, out_channels, kernel, stride=stride, padding=kernel // 2, bias=False)


class Bottleneck(nn.Module):
    def __init__(self, in_channels, width, stride):
        super().__init__()
        self.conv1, self.bn1 = conv(in_channels, width, 1), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = conv(width, width, 3, stride), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = conv(width, 4 * width, 1), nn.BatchNorm2d(4 * width)
        self.downsample = None
        if stride != 1 or in_channels != 4 * width:
            self.downsample = nn.Sequential(conv(in_channels, 4 * width, 1, stride), nn.BatchNorm2d(4 * width))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet50(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = conv(3, 64, 7, 2), nn.BatchNorm2d(64)
        layers, last = [], 64
        for stage, blocks in enumerate([3, 4, 6, 3]):
            for block in range(blocks):
                layers.append(Bottleneck(last, 64 << stage, 2 if block == 0 and stage > 0 else 1))
                last = 4 * (64 << stage)
        self.layers = nn.Sequential(*layers)
        self.fc = nn.Linear(2048, 1000)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        return self.fc(self.layers(x).mean((2, 3)))


GPTS = {"gpt": {"vocabulary": 8192, "context": 256, "width": 512, "heads": 8, "layers": 8},
        "gpt125m": {"vocabulary": 50304, "context": 1024, "width": 768, "heads": 6, "layers": 12, "dropout": 0.0},
        "gpt500m": {"vocabulary": 50304, "context": 1024, "width": 1280, "heads": 10, "layers": 22, "dropout": 0.0}}


def make(name, size):
    """The net and a batch, on the CPU."""
    torch.manual_seed(1)
    if name in GPTS:
        vocabulary, context = GPTS[name]["vocabulary"], GPTS[name]["context"]
        ids = torch.randint(vocabulary, (size, context))
        targets = torch.randint(vocabulary, (size, context))
        torch.manual_seed(0)
        return models.Gpt(**GPTS[name]), ids, targets
    shape, classes, net = {"mnist": ((1, 28, 28), 10, models.MnistNet), "resnet50": ((3, 224, 224), 1000, ResNet50)}[name]
    images = torch.randn(size, *shape)
    labels = torch.randint(classes, (size,))
    torch.manual_seed(0)
    return net(), images, labels


def capture(step, stream, static, batch):
    """Whole-network capture as PyTorch documents it for DistributedDataParallel; each call copies its batch."""
    with torch.cuda.stream(stream):
        losses = [step().clone() for _ in range(11)]
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()

    def replay():
        for to, tensor in zip(static, batch):
            to.copy_(tensor, non_blocking=True)
        graph.replay()
        return loss.clone()

    return replay, losses


class MasterWeights:
    """As in master_weights.h."""

    def __init__(self, net):
        self.weights = list(net.parameters())
        self.copies = [weight.detach().float() for weight in self.weights]
        for copy in self.copies:
            copy.grad = torch.zeros_like(copy)

    @torch.no_grad()
    def take_gradients(self):
        torch._foreach_copy_([copy.grad for copy in self.copies], [weight.grad for weight in self.weights])

    @torch.no_grad()
    def give_weights(self):
        torch._foreach_copy_(self.weights, self.copies)


def make_optimizer(flags, parameters):
    if flags.net in GPTS:
        return torch.optim.AdamW(parameters, 1e-3, fused=True, capturable=flags.mode == "graph")
    return torch.optim.SGD(parameters, 0.01, momentum=0.9, fused=True)


class Images(torch.utils.data.Dataset):
    """As those of the C++ loader."""

    def __init__(self):
        torch.manual_seed(2)
        self.images, self.labels = torch.randint(256, (60_000, 28, 28), dtype=torch.uint8), torch.randint(10, (60_000,))

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return (self.images[index].float() / 255 - 0.1307).div_(0.3081)[None], self.labels[index]


def time_loader(flags, device, step):
    """Seconds a step of each epoch, and the part of it in which the loop takes a batch and copies it."""
    loader = torch.utils.data.DataLoader(Images(), flags.batch_size, shuffle=True, num_workers=4, pin_memory=True, drop_last=True,
                                         prefetch_factor=4, persistent_workers=True)
    times, loading = [], []
    for epoch in range(-1, flags.chunks):
        begin, taking, last = time.perf_counter(), 0, time.perf_counter()
        for batch in loader:
            batch = [tensor.to(device, non_blocking=True) for tensor in batch]
            taking += time.perf_counter() - last
            step(*batch)
            last = time.perf_counter()
        torch.cuda.synchronize()
        if epoch >= 0:
            times.append((time.perf_counter() - begin) / len(loader))
            loading.append(taking / len(loader))
    return times, statistics.median(loading)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--net", choices=["mnist", "resnet50", *GPTS], default="mnist")
    parser.add_argument("--mode", choices=["eager", "compile", "graph"], default="eager")
    parser.add_argument("--precision", choices=["fp32", "bf16", "bf16_weights"], default="fp32",
                        help="bf16: autocast; bf16_weights: a net in bf16, whose optimizer works on copies in fp32")
    parser.add_argument("--data", choices=["resident", "loader"], default="resident", help="loader: of eager steps")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument("--chunks", type=int, default=10)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--fast", action="store_true", help="channels_last, cuDNN searches for its fastest algorithms")
    parser.add_argument("--bare", action="store_true",
                        help="without DistributedDataParallel, which reduces with one rank as well; Lockstep's does not")
    flags = parser.parse_args()
    if flags.deterministic:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.deterministic = True
    if flags.mode == "graph":
        os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
    torch.backends.cudnn.benchmark = flags.fast
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    store = dist.HashStore()
    dist.init_process_group("nccl", store=store, rank=0, world_size=1)
    net, inputs, targets = make(flags.net, flags.batch_size)
    net, inputs, targets = net.to(device), inputs.to(device), targets.to(device)
    if flags.precision == "bf16_weights":
        net = net.to(torch.bfloat16)
    if flags.fast:
        net, inputs = net.to(memory_format=torch.channels_last), inputs.contiguous(memory_format=torch.channels_last)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream) if flags.mode == "graph" else contextlib.nullcontext():
        ddp = net if flags.bare else DistributedDataParallel(net, device_ids=[0])
    model = torch.compile(ddp) if flags.mode == "compile" else ddp
    masters = MasterWeights(net) if flags.precision == "bf16_weights" else None
    optimizer = make_optimizer(flags, masters.copies if masters else net.parameters())

    def step(inputs=inputs, targets=targets):
        net.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=flags.precision == "bf16"):
            output = model(inputs)
            loss = F.cross_entropy(output.flatten(0, -2).float(), targets.flatten())
        loss.backward()
        if masters:
            masters.take_gradients()
        optimizer.step()
        if masters:
            masters.give_weights()
        return loss.detach()

    losses = []
    if flags.mode == "graph":
        step, losses = capture(step, stream, [inputs, targets], [inputs.clone(), targets.clone()])
    while len(losses) < flags.warmup:
        losses.append(step())
    torch.cuda.synchronize()
    times, loading = time_loader(flags, device, step) if flags.data == "loader" else ([], 0)
    for _ in range(flags.chunks if not times else 0):
        begin = time.perf_counter()
        for _ in range(flags.steps):
            losses.append(step())
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) / flags.steps)
    print(json.dumps({"seconds": statistics.median(times), "fastest": min(times), "loading": loading,
                      "losses": [loss.item().hex() for loss in losses[:200]]}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
