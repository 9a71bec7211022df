# SPDX-License-Identifier: BSD-3-Clause
"""The nets of models/*.h in Python."""
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


def conv3x3(in_channels, out_channels, stride):
    return nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False)


class BasicBlock(nn.Module):
    def __init__(self, in_channels, out_channels, stride):
        super().__init__()
        self.conv1 = conv3x3(in_channels, out_channels, stride)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = conv3x3(out_channels, out_channels, 1)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.downsample = None
        if stride != 1 or in_channels != out_channels:
            self.downsample = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False), nn.BatchNorm2d(out_channels))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet18(nn.Module):
    def __init__(self, width=64, channels=3, classes=10):
        super().__init__()
        self.conv1 = conv3x3(channels, width, 1)
        self.bn1 = nn.BatchNorm2d(width)
        layers, last = [], width
        for stage in range(4):
            layers += [BasicBlock(last, width << stage, 1 if stage == 0 else 2),
                       BasicBlock(width << stage, width << stage, 1)]
            last = width << stage
        self.layers = nn.Sequential(*layers)
        self.fc = nn.Linear(last, classes)

    def forward(self, x):
        return self.fc(self.layers(F.relu(self.bn1(self.conv1(x)))).mean((2, 3)))


class GptBlock(nn.Module):
    def __init__(self, width, heads, dropout=0.1):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, -1)
        x = x + self.dropout(self.out(y))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, vocabulary=64, context=16, width=32, heads=4, layers=2, checkpoint="none", dropout=0.1):
        super().__init__()
        self.checkpoint = checkpoint
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(GptBlock(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = self.tokens.weight

    def forward(self, ids):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = recomputed(self.checkpoint, block, x)
        return F.linear(self.norm(x), self.head)


def recomputed(kind, function, x):
    return function(x) if kind == "none" else checkpoint(function, x, use_reentrant=kind == "reentrant")


class Experts(nn.Module):
    def __init__(self, two_outputs):
        super().__init__()
        self.two_outputs = two_outputs
        self.input = nn.Linear(784, 16)
        self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))
        self.never = nn.Linear(16, 16)
        self.aside = nn.Linear(16, 3)
        self.out = nn.Linear(16, 10)

    def forward(self, x, which):
        h = F.relu(self.input(x.flatten(1)))
        h = F.relu(self.experts[which](h))
        return self.out(h), self.aside(h) if self.two_outputs else None


class SparseNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 8, sparse=True)
        self.hidden = nn.Linear(8, 16)
        self.out = nn.Linear(16, 10)

    def forward(self, x, _):
        ids = (x.flatten(1)[:, :6].abs() * 10).long().clamp(0, 49)
        return self.out(F.relu(self.hidden(self.table(ids).mean(1))))


class Kinds(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, stride=2)
        self.conv2 = nn.Conv2d(8, 8, 3, stride=2)
        self.conv1.weight.data = self.conv1.weight.data.contiguous(memory_format=torch.channels_last)
        self.conv2.weight.data = self.conv2.weight.data.contiguous(memory_format=torch.channels_last)
        self.phase = nn.Parameter(torch.view_as_complex(torch.rand(8, 2)))
        self.wide = nn.Linear(8, 12).double()
        self.scale = nn.Parameter(torch.ones(()))
        self.out = nn.Linear(12, 10)

    def forward(self, x, _):
        h = F.relu(self.conv2(F.relu(self.conv1(x.contiguous(memory_format=torch.channels_last)))))
        h = torch.view_as_real(h.mean((2, 3)) * self.phase).sum(2) * self.scale
        return self.out(F.relu(self.wide(h.double())).float())


class Reuse(nn.Module):
    def __init__(self, checkpoint):
        super().__init__()
        self.checkpoint = checkpoint
        self.input = nn.Linear(784, 24)
        self.block = nn.Linear(24, 24)
        self.dropout = nn.Dropout(0.2)
        self.out = nn.Linear(24, 10)

    def forward(self, x, _):
        h = F.relu(self.input(x.flatten(1)))
        for _ in range(3):
            h = recomputed(self.checkpoint, lambda y: self.dropout(torch.tanh(self.block(y))), h)
        return self.out(h)


class MnistNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.dropout1 = nn.Dropout2d(0.25)
        self.fc1 = nn.Linear(1600, 500)
        self.dropout2 = nn.Dropout(0.5)
        self.fc2 = nn.Linear(500, 10)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2(x), 2))
        x = self.dropout1(x).flatten(1)
        return self.fc2(self.dropout2(F.relu(self.fc1(x))))


class TiedNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 5, stride=2)
        self.norm = nn.BatchNorm2d(8)
        self.input = nn.Linear(1152, 32)
        self.a = nn.Linear(32, 32)
        self.b = nn.Linear(32, 32)
        self.b.weight = self.a.weight
        self.out = nn.Linear(32, 10)

    def forward(self, x):
        x = F.relu(self.norm(self.conv(x))).flatten(1)
        x = F.relu(self.input(x))
        return self.out(F.relu(self.b(torch.tanh(self.a(x)))))
