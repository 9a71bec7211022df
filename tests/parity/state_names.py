# SPDX-License-Identifier: BSD-3-Clause
"""The names in the state dict of a ResNet-18 in torch.nn.DataParallel, a line each, and of one with SyncBatchNorm."""
import models
from torch import nn

for kind, net in (("data_parallel", nn.DataParallel(models.ResNet18(8, 1))),
                  ("sync_batch_norm", nn.SyncBatchNorm.convert_sync_batchnorm(models.ResNet18(8, 1)))):
    for name in net.state_dict():
        print(kind, name)
