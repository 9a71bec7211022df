# SPDX-License-Identifier: BSD-3-Clause
"""The Python twin of benchmarks/checkpoint.cpp."""
import argparse
import collections
import json
import os
import time

import safetensors
import safetensors.torch
import torch


def seconds_of(action):
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def touch(state):
    return sum(tensor[0].item() for tensor in state.values())


def open_safetensors(path):
    with safetensors.safe_open(path, "pt") as file:
        return len(file.keys())


def remove(path):
    if os.path.exists(path):
        os.remove(path)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["pt", "safetensors"])
    parser.add_argument("--folder", default=".")
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--iterations", type=int, default=3)
    flags = parser.parse_args()
    state = collections.OrderedDict((f"layer{i}", torch.full((4 << 20,), float(i))) for i in range(flags.megabytes // 16))
    path, safe = os.path.join(flags.folder, "python.pt"), os.path.join(flags.folder, "python.safetensors")
    times = collections.defaultdict(list)
    for _ in range(flags.iterations):
        for tensor in state.values():
            tensor.add_(1)
        if flags.what == "pt":
            remove(path)
            times["save"].append(seconds_of(lambda: torch.save(state, path)))
            times["save_over"].append(seconds_of(lambda: torch.save(state, path)))
            times["load"].append(seconds_of(lambda: touch(torch.load(path, weights_only=True))))
            times["load_mmap"].append(seconds_of(lambda: touch(torch.load(path, weights_only=True, mmap=True))))
        else:
            remove(safe)
            times["save_safetensors"].append(seconds_of(lambda: safetensors.torch.save_file(state, safe)))
            times["open_safetensors"].append(seconds_of(lambda: open_safetensors(safe)))
            times["load_safetensors"].append(seconds_of(lambda: touch(safetensors.torch.load_file(safe))))
    print(json.dumps(times))


if __name__ == "__main__":
    main()
