# SPDX-License-Identifier: BSD-3-Clause
"""Import this before torchvision. The torchvision of PyPI is built with CUDA, so beside a LibTorch without CUDA its
extensions do not load: this loads the image decoders with empty stand-ins for the CUDA libraries, and declares the
operators that torchvision expects when it is imported (they cannot be called)."""
import ctypes
import importlib.util
import os
import pathlib
import re
import subprocess
import tempfile

import torch

STAND_INS = {
    "libc10_cuda.so": "namespace c10::cuda::CUDACachingAllocator { void* allocator; }",
    "libtorch_cuda.so": "",
}


def load_stand_ins(folder):
    for name, source in STAND_INS.items():
        path = f"{folder}/{name}"
        subprocess.run(["c++", "-std=c++17", "-shared", "-fPIC", "-x", "c++", "-", "-o", path, f"-Wl,-soname,{name}"],
                       input=source, text=True, check=True)
        ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)


def load_decoders(path):
    """ctypes always resolves all symbols at once; here those of CUDA stay unresolved."""
    libc = ctypes.CDLL(None)
    libc.dlopen.restype = ctypes.c_void_p
    libc.dlerror.restype = ctypes.c_char_p
    if not libc.dlopen(str(path).encode(), os.RTLD_LAZY):
        raise ImportError(libc.dlerror().decode())


def declare_operators(source):
    library = torch.library.Library("torchvision", "DEF")
    for name in sorted(set(re.findall(r'register_fake\("torchvision::(\w+)"', source))):
        library.define(f"{name}(Tensor x) -> Tensor")
    return library


if torch.version.cuda is None:
    package = pathlib.Path(importlib.util.find_spec("torchvision").origin).parent
    with tempfile.TemporaryDirectory() as temporary:
        load_stand_ins(temporary)
        load_decoders(package / "image.so")
    operators = declare_operators((package / "_meta_registrations.py").read_text())
