# SPDX-License-Identifier: BSD-3-Clause
"""The state dict of a ResNet-18, bare and in torch.nn.DataParallel: state_dict_of.py <file> <file>"""
import sys

import models
import torch
from torch import nn

net = models.ResNet18(8, 1)
torch.save(net.state_dict(), sys.argv[1])
torch.save(nn.DataParallel(net).state_dict(), sys.argv[2])
