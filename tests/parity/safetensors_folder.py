# SPDX-License-Identifier: BSD-3-Clause
"""safetensors_folder.py <folder> <bytes>...: writes a state dict to <folder>/dict.pt and, for each number of bytes, to the
folder <folder>/python-<bytes> as model hubs have it."""
import os
import sys

import torch
from huggingface_hub import save_torch_state_dict

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.Linear(8, 2), torch.nn.Linear(2, 90))
state_dict = dict(net.state_dict())
torch.save(state_dict, f"{sys.argv[1]}/dict.pt")
for size in sys.argv[2:]:
    folder = f"{sys.argv[1]}/python-{size}"
    os.mkdir(folder)
    save_torch_state_dict(state_dict, folder, max_shard_size=int(size))
