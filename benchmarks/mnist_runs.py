# SPDX-License-Identifier: BSD-3-Clause
"""MNIST training slices of run_mnist.py and run_amp.py, with Lockstep (mnist.cpp) or PyTorch (pytorch/mnist.py)."""
import pathlib

import bench_support as bench


def add_options(parser, steps):
    parser.add_argument("--steps", type=int, default=steps, help="steps per slice; 0: whole epochs")
    parser.add_argument("--batch-size", type=int, default=128, help="images per step and rank")
    parser.add_argument("--data-dir", type=pathlib.Path, default=bench.ROOT / ".data" / "mnist")


def download(flags):
    if not flags.data_dir.exists():
        bench.progress("downloading MNIST")
        bench.finished([*bench.benchmark("mnist"), "--epochs", "1", "--max-steps", "1", "--data-dir", str(flags.data_dir)],
                       flags.timeout)


def train(flags, backend, world_size, epochs, arguments):
    """The results of each epoch. `backend` None: PyTorch."""
    options = ["--data-dir", str(flags.data_dir), "--epochs", str(epochs), "--max-steps", str(flags.steps), "--batch-size",
               str(flags.batch_size), *arguments]
    if backend is None:
        return bench.launch("torchrun", [*bench.twin("mnist"), "--json", *options], world_size, flags.timeout)
    command = [*bench.benchmark("mnist"), "--backend", backend, *options]
    return bench.launch("lockstep run", command, world_size, flags.timeout)
