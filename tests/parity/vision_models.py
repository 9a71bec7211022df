# SPDX-License-Identifier: BSD-3-Clause
"""torchvision's networks and twins of the others: vision_models.py <folder> <case>...

Writes what write() of model_cases.py does, or only names and shapes for SHAPES_ONLY."""
import os
import sys

import torch

from torch import nn

from model_cases import arguments, write

sys.path.append(os.path.join(os.path.dirname(__file__), ".."))
import support.torchvision_cpu  # noqa: E402, F401
from torchvision import models  # noqa: E402
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet  # noqa: E402



class TNet(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.k = k
        for i, (inputs, outputs) in enumerate([(k, 64), (64, 128), (128, 1024)], 1):
            setattr(self, f"conv{i}", nn.Conv1d(inputs, outputs, 1))
        for i, (inputs, outputs) in enumerate([(1024, 512), (512, 256), (256, k * k)], 1):
            setattr(self, f"fc{i}", nn.Linear(inputs, outputs))
        for i, width in enumerate([64, 128, 1024, 512, 256], 1):
            setattr(self, f"bn{i}", nn.BatchNorm1d(width))
        nn.init.zeros_(self.fc3.weight)
        self.fc3.bias.data = torch.eye(k).flatten()

    def forward(self, x):
        for layer, norm in [(self.conv1, self.bn1), (self.conv2, self.bn2), (self.conv3, self.bn3)]:
            x = torch.relu(norm(layer(x)))
        x = torch.max(x, 2)[0]
        for layer, norm in [(self.fc1, self.bn4), (self.fc2, self.bn5)]:
            x = torch.relu(norm(layer(x)))
        return self.fc3(x).view(-1, self.k, self.k)


class PointNet(nn.Module):
    """Qi et al., 2017, section 5.1 and appendix C."""

    def __init__(self, classes, feature_transform=True):
        super().__init__()
        self.stn = TNet(3)
        self.conv1, self.conv2 = nn.Conv1d(3, 64, 1), nn.Conv1d(64, 64, 1)
        if feature_transform:
            self.fstn = TNet(64)
        self.conv3, self.conv4, self.conv5 = nn.Conv1d(64, 64, 1), nn.Conv1d(64, 128, 1), nn.Conv1d(128, 1024, 1)
        for i, width in enumerate([64, 64, 64, 128, 1024], 1):
            setattr(self, f"bn{i}", nn.BatchNorm1d(width))
        self.fc1, self.fc2, self.fc3 = nn.Linear(1024, 512), nn.Linear(512, 256), nn.Linear(256, classes)
        self.bn6, self.bn7 = nn.BatchNorm1d(512), nn.BatchNorm1d(256)
        self.dropout = nn.Dropout(0.3)

    def forward(self, x):
        x = (x.transpose(2, 1) @ self.stn(x)).transpose(2, 1)
        x = torch.relu(self.bn1(self.conv1(x)))
        x = torch.relu(self.bn2(self.conv2(x)))
        extra = ()
        if hasattr(self, "fstn"):
            matrices = self.fstn(x)
            x = (x.transpose(2, 1) @ matrices).transpose(2, 1)
            products = matrices @ matrices.transpose(1, 2)
            extra = (matrices, ((torch.eye(64) - products) ** 2).sum((1, 2)).mean())
        for layer, norm in [(self.conv3, self.bn3), (self.conv4, self.bn4), (self.conv5, self.bn5)]:
            x = torch.relu(norm(layer(x)))
        x = torch.max(x, 2)[0]
        x = self.dropout(torch.relu(self.bn6(self.fc1(x))))
        x = self.dropout(torch.relu(self.bn7(self.fc2(x))))
        return (self.fc3(x), *extra)


def knn_edges(x, k):
    """The graph of each cloud by pairwise distances, and for each edge the offset and the point."""
    clouds = []
    for cloud in x.transpose(1, 2):
        with torch.no_grad():
            nearest = torch.cdist(cloud, cloud).topk(k, largest=False)[1]
        centres = cloud[:, None, :].expand(-1, k, -1)
        clouds.append(torch.cat([cloud[nearest] - centres, centres], -1).permute(2, 0, 1))
    return torch.stack(clouds)


class DGCNN(nn.Module):
    """Wang et al., 2019, figure 3 (classification), with the names of the authors' PyTorch code."""

    def __init__(self, k, emb_dims, classes):
        super().__init__()
        self.k = k
        widths = [64, 64, 128, 256]
        for i, width in enumerate(widths, 1):
            setattr(self, f"bn{i}", nn.BatchNorm2d(width))
        self.bn5 = nn.BatchNorm1d(emb_dims)
        for i, (inputs, outputs) in enumerate(zip([3, *widths], widths), 1):
            setattr(self, f"conv{i}", nn.Sequential(nn.Conv2d(2 * inputs, outputs, 1, bias=False), getattr(self, f"bn{i}"),
                                                    nn.LeakyReLU(0.2)))
        self.conv5 = nn.Sequential(nn.Conv1d(sum(widths), emb_dims, 1, bias=False), self.bn5, nn.LeakyReLU(0.2))
        self.linear1, self.bn6, self.dp1 = nn.Linear(2 * emb_dims, 512, bias=False), nn.BatchNorm1d(512), nn.Dropout(0.5)
        self.linear2, self.bn7, self.dp2 = nn.Linear(512, 256), nn.BatchNorm1d(256), nn.Dropout(0.5)
        self.linear3 = nn.Linear(256, classes)

    def forward(self, x):
        levels = []
        for conv in (self.conv1, self.conv2, self.conv3, self.conv4):
            x = conv(knn_edges(x, self.k)).max(-1)[0]
            levels.append(x)
        x = self.conv5(torch.cat(levels, 1))
        x = torch.cat([x.max(-1)[0], x.mean(-1)], 1)
        for layer, norm, dropout in [(self.linear1, self.bn6, self.dp1), (self.linear2, self.bn7, self.dp2)]:
            x = dropout(nn.functional.leaky_relu(norm(layer(x)), 0.2))
        return self.linear3(x)


IMAGES = (2, 3, 64, 64)
SMALL = (2, 3, 32, 32)
POINTS = (4, 3, 32)
CASES = {
    "bottleneck": (lambda: ResNet(Bottleneck, [1, 2, 1, 1], num_classes=10, zero_init_residual=True,
                                  replace_stride_with_dilation=[False, True, True]), IMAGES),
    "basic": (lambda: ResNet(BasicBlock, [2, 1, 1, 1], num_classes=3, zero_init_residual=True), IMAGES),
    "resnext": (lambda: ResNet(Bottleneck, [1, 1, 1, 1], num_classes=10, groups=32, width_per_group=4), IMAGES),
    "point_net": (lambda: PointNet(5), POINTS),
    "point_net_plain": (lambda: PointNet(40, feature_transform=False), POINTS),
    "dgcnn": (lambda: DGCNN(k=6, emb_dims=64, classes=5), POINTS),
    "mobilenet_v2": (lambda: models.mobilenet_v2(num_classes=10), IMAGES),
    "vit": (lambda: models.VisionTransformer(32, 8, 2, 4, 32, 64, dropout=0.1, attention_dropout=0.1, num_classes=10), SMALL),
    "vit_logits": (lambda: models.VisionTransformer(32, 16, 1, 2, 16, 24, num_classes=3, representation_size=20), SMALL),
    "mobilenet_slim": (lambda: models.MobileNetV2(width_mult=0.35, num_classes=5, dropout=0.5, inverted_residual_setting=[
        [1, 16, 1, 1], [6, 24, 2, 2]]), IMAGES),
}
SHAPES_ONLY = {
    "resnet18": models.resnet18,
    "resnet34": models.resnet34,
    "resnet50": models.resnet50,
    "resnet101": models.resnet101,
    "resnext50_32x4d": models.resnext50_32x4d,
    "vit_b_16": models.vit_b_16,
    "vit_tiny_16": lambda: models.VisionTransformer(224, 16, 12, 3, 192, 768),
}


def outputs_of(net, images):
    output = net(images)
    return output if isinstance(output, tuple) else (output,)


def main():
    folder, names = arguments()
    for name in names:
        if name in SHAPES_ONLY:
            with torch.device("meta"):
                net = SHAPES_ONLY[name]()
            torch.save({key: list(tensor.shape) for key, tensor in net.state_dict().items()}, os.path.join(folder, f"{name}.pt"))
        else:
            make, shape = CASES[name]
            write(folder, name, make, lambda: torch.randn(shape), outputs_of)


if __name__ == "__main__":
    main()
