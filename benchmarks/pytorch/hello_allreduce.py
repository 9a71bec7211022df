# SPDX-License-Identifier: BSD-3-Clause
"""The Python twin of examples/01_hello_allreduce."""
import torch
import torch.distributed as dist

if __name__ == "__main__":
    dist.init_process_group("gloo")
    tensor = torch.full((1,), dist.get_rank() + 1.0)
    dist.all_reduce(tensor)
    print(f"rank {dist.get_rank()} of {dist.get_world_size()}: the sum is {tensor.item():g}", flush=True)
    dist.destroy_process_group()
