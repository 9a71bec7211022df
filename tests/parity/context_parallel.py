# SPDX-License-Identifier: BSD-3-Clause
"""context_parallel_test.cpp in Python: context_parallel.py <folder> <world size>, like ddp_training.py.

PyTorch's context_parallel() does not know the CPU's attention operator, so this calls the ring that it runs on GPUs
with that operator.
"""
import sys
import warnings

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import _attention
from torch.distributed.tensor.experimental._context_parallel import _attention as ring

from ddp_training import run_everywhere

FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def run_case(case):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    is_causal = case["causal"] == "1"
    ring._cp_options.enable_load_balance = case["balanced"] == "1"
    _attention.set_rotate_method("alltoall")
    torch.manual_seed(11)
    whole = [torch.randn(2, 3, 8 * mesh.size(), 4) for _ in range(4)]
    balancer = ring._create_default_load_balancer(8 * mesh.size(), mesh.size(), "cpu")
    query, key, value, gradient = (x.contiguous()
                                   for x in ring._context_parallel_buffers(mesh, whole, [2] * 4, balancer))
    output, logsumexp = ring._templated_ring_attention(mesh.get_group(), 2, FORWARD, query=query, key=key, value=value,
                                                       is_causal=is_causal, dropout_p=0.0)
    gradients = ring._templated_ring_attention_backward(
        mesh.get_group(), 2, BACKWARD, grad_out=gradient, grad_out_name="grad_out", query=query, key=key, value=value,
        out=output, logsumexp=logsumexp, is_causal=is_causal, dropout_p=0.0)
    unsharded = _attention.context_parallel_unshard(mesh, [output], [2])[0]
    return [("query", query), ("output", output), ("unsharded", unsharded),
            *zip(("of_query", "of_key", "of_value"), gradients)]


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    run_everywhere(sys.argv[1], int(sys.argv[2]), run_case)
