# SPDX-License-Identifier: BSD-3-Clause
"""Jobs of C++ and Python ranks beside pure ones, bit for bit: mixed_jobs.py <mixed_jobs program> [backend...]"""

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import shlex
import socket
import subprocess
import sys
import tempfile

import warnings

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from models import MnistNet

import torch._dynamo  # noqa: F401  (DistributedDataParallel imports it; before the forks, once)

# The names since PyTorch 2.14, and those before.
all_gather_single = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
reduce_scatter_single = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)

LIMIT = 60
CASES = ("averaged", "unused", "static", "accumulated", "compressed")


class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.fc1 = nn.Linear(196, 64)
        self.norm = nn.BatchNorm1d(64)
        self.extra = nn.Linear(64, 64)
        self.fc2 = nn.Linear(64, classes)
        self.uses_extra = True

    def forward(self, x):
        x = F.relu(self.norm(self.fc1(x)))
        return self.fc2(F.relu(self.extra(x)) if self.uses_extra else x)


def collectives(rank, device):
    ranks = dist.get_world_size()
    own = (torch.arange(12, dtype=torch.float) + 10.0 * rank).to(device)
    total = own.clone()
    dist.all_reduce(total)
    most = own.clone()
    dist.all_reduce(most, dist.ReduceOp.MAX)
    count = own.long()
    dist.all_reduce(count, dist.ReduceOp.PRODUCT, async_op=True).wait()
    reduced = own.bfloat16()
    dist.reduce(reduced, 0)
    first = own.clone()
    dist.broadcast(first, 0)
    parts = [torch.empty_like(own) for _ in range(ranks)]
    dist.all_gather(parts, own)
    joined = torch.empty(12 * ranks, device=device)
    all_gather_single(joined, own)
    gathered = [torch.zeros_like(own) for _ in range(ranks)]
    dist.gather(own, gathered if rank == 1 else None, 1)
    scattered = torch.empty_like(own)
    dist.scatter(scattered, [own + i for i in range(ranks)] if rank == 1 else None, 1)
    part = torch.empty(12 // ranks, device=device)
    reduce_scatter_single(part, own)
    listed = torch.empty_like(part)
    dist.reduce_scatter(listed, list(own.chunk(ranks)))
    swapped = torch.empty_like(own)
    dist.all_to_all_single(swapped, own)
    received = torch.empty_like(own)
    peer = rank ^ 1
    if rank < peer:
        dist.send(own, peer)
        dist.recv(received, peer)
    else:
        dist.recv(received, peer)
        dist.send(own, peer)
    dist.barrier()
    group = dist.new_group([0, ranks - 1])
    sub = own.clone()
    others = [torch.zeros_like(own) for _ in range(2)]
    if rank in (0, ranks - 1):
        dist.all_reduce(sub, group=group)
    turned = dist.new_group([ranks - 1, 0])
    if rank in (0, ranks - 1):
        dist.all_gather(others, own, group=turned)
    on_cpu = dist.new_group(backend="gloo")
    on_host = own.cpu()
    dist.all_reduce(on_host, group=on_cpu)
    return [total, most, count, reduced if rank == 0 else own, first, *parts, joined, *gathered, scattered, part, listed, swapped,
            received, sub, *others, on_host]


def batch(rank, shape, number):
    torch.manual_seed(1000 + 10 * number + rank)
    return torch.rand(shape), torch.randint(10, shape[:1])


def compress(state, bucket):
    """PyTorch refuses its own function by its name unless there is a GPU."""
    return bf16_compress_hook(state, bucket)


def train(rank, device, case, make_net=lambda: Net(10), shape=(32, 196)):
    torch.manual_seed(rank)
    net = make_net().to(device)
    ddp = DistributedDataParallel(
        net, bucket_cap_mb=0.02, find_unused_parameters=case == "unused", static_graph=case == "static")
    if case == "compressed":
        ddp.register_comm_hook(None, compress)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    parts = 3 if case == "accumulated" else 1
    losses = []
    for step in range(12):
        optimizer.zero_grad()
        net.uses_extra = case != "static" and not (case == "unused" and (step + rank) % 3)
        for part in range(parts):
            with contextlib.nullcontext() if part + 1 == parts else ddp.no_sync():
                pixels, labels = (tensor.to(device) for tensor in batch(rank, shape, parts * step + part))
                loss = F.cross_entropy(ddp(pixels), labels)
                loss.backward()
        optimizer.step()
        losses.append(loss.detach().clone())
    return {"losses": losses, "state": dict(net.state_dict())}


def python_rank(rank, backend, environment, file, task="train"):
    os.environ.update(environment)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    device = f"cuda:{rank}" if backend == "nccl" else "cpu"
    try:
        if backend == "nccl":
            torch.cuda.set_device(device)
        elif backend != "gloo":
            import lockstep_torch  # noqa: F401
        dist.init_process_group(backend)
        results = {"collectives": collectives(rank, device)}
        if task == "train":
            results |= {**{case: train(rank, device, case) for case in CASES},
                        "mnist": train(rank, device, "mnist", MnistNet, (32, 1, 28, 28))}
    except Exception as error:
        results = {"error": f"{type(error).__name__}: {error}"}
    torch.save(results, file)
    if dist.is_initialized():
        dist.destroy_process_group()


held_ports = []


def free_port():
    """No other program gets it while this one runs; a store allows address reuse and can listen there."""
    held = socket.socket()
    held.bind(("", 0))
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held_ports.append(held)
    return held.getsockname()[1]


def run(program, backend, languages, folder, task="train"):
    """[rank]: the results of a job whose rank i is in languages[i], "python" or "c++". Four ranks are on two hosts."""
    port = free_port()
    mode = "with_python" if "python" in languages else "alone"
    processes = []
    files = []
    try:
        for rank, language in enumerate(languages):
            environment = {
                "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(len(languages)),
                "LOCAL_WORLD_SIZE": str(len(languages)), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                "OMP_NUM_THREADS": "1"}
            if len(languages) == 4:
                environment |= {"LOCKSTEP_HOST_ID": str(rank // 2), "GLOO_SOCKET_IFNAME": "lo"}
            file = os.path.join(folder, f"{rank}.pt")
            files.append(file)
            if language == "python":
                process = multiprocessing.get_context("fork").Process(
                    target=python_rank, args=(rank, backend, environment, file), daemon=True)
                process.start()
                processes.append((process, process.join))
            else:
                process = subprocess.Popen([program, backend, mode, task, file], env=dict(os.environ, **environment))
                processes.append((process, process.wait))
        for _, wait in processes:
            wait(LIMIT)
    finally:
        for process, _ in processes:
            process.kill()  # nothing if it has ended
    return [torch.load(file, map_location="cpu") for file in files]  # forks follow, so CUDA must not start here


def equal(left, right):
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(equal(left[name], right[name]) for name in left)
    return len(left) == len(right) and all(map(equal, left, right))


def check(condition, message):
    if not condition:
        sys.exit(message)


def compare(program, backend, folder, *jobs):
    expected = run(program, backend, ["python"] * len(jobs[0]), folder)
    check("error" not in expected[0], f"{backend}: Python alone: {expected}")
    for languages in jobs:
        for rank, (results, wanted) in enumerate(zip(run(program, backend, languages, folder), expected)):
            where = f"{backend}, {languages}, rank {rank}"
            check("error" not in results, f"{where}: {results}")
            for part in wanted:
                check(equal(results[part], wanted[part]), f"{where}: {part} differs: {results[part]} {wanted[part]}")
            for text in results.get("refusals", []):
                check("Python ranks" in text, f"{where}: {results['refusals']}")


def check_other_model(program, backend, folder):
    """Different models are an error on the rank whose model is not rank 0's, as between Python ranks."""
    results = run(program, backend, ["python", "c++"], folder, "other_model")
    check("sizes and strides of fc2.weight are [10, 64, 64, 1] on rank 0 and [11, 64, 64, 1] here"
          in results[1].get("error", ""), results[1])
    check("error" in results[0], results[0])


def check_torchrun(program, folder):
    """torchrun's agent serves the store of the ranks, also if rank 0 is C++."""
    files = [os.path.join(folder, f"torchrun {rank}.pt") for rank in range(2)]
    python = (f"import sys; sys.path.insert(0, {os.path.dirname(os.path.abspath(__file__))!r}); import mixed_jobs; "
              f"mixed_jobs.python_rank(1, 'shm', {{}}, {files[1]!r}, 'collectives')")
    ranks = [shlex.join([program, "shm", "with_python", "collectives", files[0]]), shlex.join([sys.executable, "-c", python])]
    subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python",
         "sh", "-c", f"if [ $RANK = 0 ]; then exec {ranks[0]}; fi; exec {ranks[1]}"], timeout=LIMIT, stderr=subprocess.DEVNULL)
    results = [torch.load(file) for file in files]
    check(all("collectives" in each for each in results), results)


def check_refused(program, backend, variables, words, folder):
    """What cannot be mixed is an error before the rank waits for any other."""
    file = os.path.join(folder, "refused.pt")
    environment = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())} | variables
    subprocess.run([program, backend, "with_python", "train", file], env=dict(os.environ, **environment), timeout=LIMIT)
    error = torch.load(file).get("error", "")
    check(words in error, f"{backend}, {variables}: {error}")


def check_mismatch(program, folder, ranks, words):
    """Ranks that cannot be mixed are an error of at least one of them that names why, before their timeout of half an hour.
    `ranks`: (language, backend, mode of the program) of each."""
    port = free_port()
    files = [os.path.join(folder, f"mismatch {rank}.pt") for rank in range(len(ranks))]
    processes = []
    try:
        for rank, (language, backend, mode) in enumerate(ranks):
            environment = {"RANK": str(rank), "WORLD_SIZE": str(len(ranks)), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            if language == "python":
                processes.append(multiprocessing.get_context("fork").Process(
                    target=python_rank, args=(rank, backend, environment, files[rank], "collectives"), daemon=True))
                processes[-1].start()
            else:
                processes.append(subprocess.Popen(
                    [program, backend, mode, "collectives", files[rank]], env=dict(os.environ, **environment)))
        sentinels = {process.sentinel if ranks[i][0] == "python" else os.pidfd_open(process.pid): files[i]
                     for i, process in enumerate(processes)}
        errors = []
        while sentinels and not any(words in error for error in errors):
            ended = multiprocessing.connection.wait(sentinels, LIMIT)
            check(ended, f"{ranks}: {errors}, and the others did not end within {LIMIT} s")
            errors += [torch.load(sentinels.pop(each)).get("error", "") for each in ended]
    finally:
        for process in processes:
            process.kill()
            process.wait() if isinstance(process, subprocess.Popen) else process.join()
    check(any(words in error for error in errors), f"{ranks}: {errors}")


def check_mismatches(program, folder):
    python, cpp = ("python", "shm", ""), ("c++", "shm", "with_python")
    forgotten = ("c++", "shm", "alone")
    for ranks in ((python, forgotten), (forgotten, python), (("python", "gloo", ""), forgotten), (forgotten, cpp), (cpp, forgotten)):
        check_mismatch(program, folder, ranks, "set with_python on all C++ ranks")
    check_mismatch(program, folder, (python, ("c++", "gloo", "with_python")), " on another rank; give all ranks of the group")
    check_mismatch(program, folder, (("python", "gloo", ""), cpp), "the backend is shm here and gloo on rank 0")
    check_mismatch(program, folder, (python, ("c++", "hierarchical", "with_python")), "hierarchical of Lockstep")


def main(program, *backends):
    with tempfile.TemporaryDirectory() as folder:
        for backend in backends or ("gloo", "shm", "hierarchical"):
            compare(program, backend, folder, ["c++", "c++"], ["c++", "python"], ["python", "c++"])
            if backend == "hierarchical":
                compare(program, backend, folder, ["c++", "python", "python", "c++"])
            if backend != "nccl":  # over which a Python rank waits for a lost one until its timeout
                check_other_model(program, backend, folder)
        if "nccl" not in backends:
            check_torchrun(program, folder)
            check_mismatches(program, folder)
        check_refused(program, "auto", {}, "name the one of the Python ranks", folder)
        check_refused(program, "gloo", {"TORCH_DISTRIBUTED_DEBUG": "detail"}, "TORCH_DISTRIBUTED_DEBUG=DETAIL", folder)
        check_refused(program, "gloo", {"TORCH_DIST_INIT_BARRIER": "1"}, "TORCH_DIST_INIT_BARRIER=1", folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
