# SPDX-License-Identifier: BSD-3-Clause
"""feature_training.cpp in Python: feature_training.py <folder> <world size>, like ddp_training.py."""
import contextlib
import inspect
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, post_localSGD_hook, powerSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.nn import functional as F

import models
from ddp_training import run_everywhere

SEED = 23
BATCH = 8
RATE = 0.05


def make_net(case):
    kind = case["net"]
    if kind in ("experts", "one_expert"):
        return models.Experts(two_outputs=kind == "experts")
    if kind == "reuse":
        return models.Reuse(case["checkpoint"])
    if kind == "gpt":
        return models.Gpt(checkpoint=case["checkpoint"])
    if kind == "resnet18":
        return models.ResNet18(8, 1)
    return {"sparse": models.SparseNet, "kinds": models.Kinds, "tied": models.TiedNet}[kind]()


def register_hook(ddp, name):
    simple = {
        "allreduce": default_hooks.allreduce_hook,
        "fp16": default_hooks.fp16_compress_hook,
        "bf16": default_hooks.bf16_compress_hook,
        "fp16_wrapper": default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook),
        "bf16_wrapper": default_hooks.bf16_compress_wrapper(default_hooks.allreduce_hook),
    }
    if name in simple:
        # By another name: PyTorch refuses bfloat16 hooks by theirs unless there is a GPU.
        ddp.register_comm_hook(None, lambda state, bucket: simple[name](state, bucket))
    elif name.startswith("local_sgd"):
        own, _ = dist.new_subgroups(group_size=1)
        state = post_localSGD_hook.PostLocalSGDState(None, own, 3, post_local_gradient_allreduce=name == "local_sgd")
        ddp.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    else:
        hook = powerSGD_hook.powerSGD_hook
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=3 if name == "powersgd_rank3" else 1, start_powerSGD_iter=3,
            use_error_feedback=name != "powersgd_no_feedback", warm_start=name != "powersgd_cold",
            orthogonalization_epsilon=1e-8, batch_tensors_with_same_shape=name == "powersgd_batched")
        ddp.register_comm_hook(state, default_hooks.fp16_compress_wrapper(hook) if name == "powersgd_fp16" else hook)


def reduce_delayed(self, grad):
    # PyTorch's own starts this all-reduce and never waits for it.
    self._delay_grad_buffer.div_(dist.get_world_size())
    dist.all_reduce(self._delay_grad_buffer, group=self.process_group)
    return grad


nn.parallel.DistributedDataParallel._delayed_all_reduce_hook = reduce_delayed


def wrap(case, net):
    options = {}
    known = inspect.signature(nn.parallel.DistributedDataParallel).parameters
    if case["buffers"] == "off":
        options["broadcast_buffers"] = False
    elif case["buffers"]:
        # Before 2.13 with the same bits, since all ranks construct the same buffers.
        option = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
        options[option] = case["buffers"] == "forward_on"
    # Options that change no bits, and that earlier releases do not have.
    for option, flag in {"batched_grad_copy": "batched", "lazy_bucket_allocation": "lazy"}.items():
        if option in known:
            options[option] = case[flag] == "1"
    parameters = dict(net.named_parameters())
    if case["delay"]:
        options["delay_all_reduce_named_params"] = [(case["delay"], parameters[case["delay"]])]
        options["param_to_hook_all_reduce"] = parameters[case["trigger"]]
    if case["ignore"]:
        nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(net, [case["ignore"]])
    cap = float(case["bucket_cap_mb"])
    caps = [float(each) for each in case["bucket_caps"].split(",")] if case["bucket_caps"] else None
    return nn.parallel.DistributedDataParallel(
        net, bucket_cap_mb=cap if cap > 0 else None, bucket_cap_mb_list=caps,
        gradient_as_bucket_view=case["view"] == "1", find_unused_parameters=case["find_unused"] == "1",
        static_graph=case["static_graph"] == "1", skip_all_reduce_unused_params=case["skip_unused"] == "1",
        **options)


class Training:
    def __init__(self, case):
        self.case = case
        self.ddp = wrap(case, make_net(case))
        momentum = 0 if case["net"] == "sparse" or case["in_backward"] == "1" else 0.9
        self.optimizer = torch.optim.SGD(self.ddp.parameters(), lr=RATE, momentum=momentum)
        self.source = torch.Generator().manual_seed(3000 + dist.get_rank())
        self.averager = None
        self.losses = []
        if case["hook"]:
            register_hook(self.ddp, case["hook"])
        if case["average_every"] != "0":
            self.averager = PeriodicModelAverager(int(case["average_every"]), warmup_steps=2)

    def run(self):
        if not self.case["batches"]:
            for step in range(int(self.case["steps"])):
                self.train(step)
            return
        counts = [int(count) for count in self.case["batches"].split(",")]
        try:
            with self.ddp.join(divide_by_initial_world_size=self.case["by_initial_size"] == "1",
                               throw_on_early_termination=self.case["stop_early"] == "1"):
                for step in range(counts[dist.get_rank() % len(counts)]):
                    self.train(step)
        except RuntimeError:
            if self.case["stop_early"] != "1":
                raise
            self.losses.append(-1)

    def train(self, step):
        case = self.case
        self.optimizer.zero_grad(set_to_none=case["set_to_none"] == "1")
        micro_steps = int(case["micro_steps"])
        for micro in range(micro_steps):
            with self.ddp.no_sync() if micro + 1 < micro_steps else contextlib.nullcontext():
                loss = self.forward(step)
                for _ in range(int(case["forwards"]) - 1):
                    loss = loss + self.forward(step)
                loss.backward()
                self.losses.append(loss.item())
        if float(case["clip"]) > 0:
            self.losses.append(nn.utils.clip_grad_norm_(self.ddp.parameters(), float(case["clip"])).item())
        self.optimizer.step()
        if case["in_backward"] == "1":
            # PyTorch's own way needs an accelerator; the result must be that of an ordinary step.
            self.optimizer.zero_grad()
        if self.averager:
            self.averager.average_parameters(self.ddp.parameters())

    def forward(self, step):
        images = torch.randn(BATCH, 1, 28, 28, generator=self.source)
        labels = torch.randint(10, (BATCH,), generator=self.source)
        return F.cross_entropy(self.logits(images, step), labels)

    def logits(self, images, step):
        kind = self.case["net"]
        which = (step + dist.get_rank()) % 3 if self.case["own_experts"] == "1" else step % 3
        if kind in ("tied", "resnet18"):
            return self.ddp(images)
        if kind == "gpt":
            ids = (images.flatten(1)[:, :16].abs() * 20).long().clamp(0, 63)
            return self.ddp(ids)[:, -1, :10]
        if kind in ("experts", "one_expert"):
            return self.ddp(images, 1 if kind == "one_expert" else which)[0]
        return self.ddp(images, which)


def as_row(tensor):
    if tensor is None:
        return torch.empty(0)
    if tensor.is_sparse:
        tensor = tensor.to_dense()
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def train(case):
    torch.manual_seed(SEED)
    training = Training(case)
    training.run()
    records = [("losses", torch.tensor(training.losses))]
    for name, parameter in training.ddp.named_parameters():
        records += [(name, as_row(parameter.detach())), (f"grad:{name}", as_row(parameter.grad))]
    records += list(training.ddp.named_buffers())
    sizes = ""
    # PyTorch learns its buckets' sizes in a forward, which ranks that have joined do not make.
    if dist.get_world_size() > 1 and not case["batches"]:
        data = training.ddp._get_ddp_logging_data()
        sizes = data.get("rebuilt_bucket_sizes") or data["bucket_sizes"]
    records.append(("bucket_sizes", torch.tensor([float(size) for size in sizes.split(",") if size])))
    return records


if __name__ == "__main__":
    run_everywhere(sys.argv[1], int(sys.argv[2]), train)
