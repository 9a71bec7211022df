# SPDX-License-Identifier: BSD-3-Clause
"""Installs the package in a fresh environment and uses nothing else: wheel_test.py <folder> <compiler> <package>... [--download]

Trains in Python, then builds and runs a C++ project with the CMake package. A <package> is a wheel, a folder with one, or a
source distribution, which pip builds; each replaces the one before. torch and what it requires are those of this interpreter;
with --download pip fetches them, as it does for users.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

HERE = Path(__file__).resolve().parent
# What would lead programs to libraries and packages outside of the environment.
HIDDEN = ("CMAKE_PREFIX_PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "Torch_DIR", "VIRTUAL_ENV")
# glibc, the compiler's libraries and what the kernel adds; all others are in the wheel or are torch's.
SYSTEM = re.compile(r"lib(c|m|dl|rt|pthread|util|stdc\+\+|gcc_s)\.so\.\d+$|ld-linux|linux-vdso")


def run(*command, fails=False, **environment):
    """What the command prints."""
    clean = {name: text for name, text in os.environ.items() if name not in HIDDEN}
    result = subprocess.run([str(word) for word in command], env=dict(clean, **environment), text=True, capture_output=True)
    if (result.returncode != 0) != fails:
        sys.exit(f"{command} ended with {result.returncode}:\n{result.stdout}{result.stderr}")
    return result.stderr if fails else result.stdout


def requirements(*names):
    """The packages and all that they require, without extras."""
    found, waiting = {}, list(names)
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found[name] = metadata.distribution(name)
        for requirement in map(Requirement, found[name].requires or []):
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting.append(requirement.name)
    return found.values()


def link(distribution, packages):
    for name in {file.parts[0] for file in distribution.files} - {"..", "__pycache__"}:
        if not (packages / name).exists():  # "nvidia" is of several distributions
            (packages / name).symlink_to(distribution.locate_file(name))


def make_environment(folder, download):
    """A fresh virtual environment; its pip and its site-packages."""
    run(sys.executable, "-m", "venv", *([] if download else ["--without-pip"]), folder)
    [packages] = folder.glob("lib/python*/site-packages")
    if not download:
        for distribution in requirements("torch", "numpy"):
            link(distribution, packages)
    return [sys.executable, "-m", "pip", "--python", folder / "bin/python"], packages


def check_libraries(program, *allowed):
    for line in run("ldd", program).splitlines():
        name, path = (line.split("=>") + [""])[:2]
        path = os.path.normpath(path.split("(")[0].strip() or name.split("(")[0].strip())
        if not SYSTEM.search(path) and not path.startswith(tuple(map(str, allowed))):
            sys.exit(f"{program} needs {line.strip()}")


def check_refusal(python, folder):
    """Another release of torch is refused in one sentence, before anything is loaded."""
    (folder / "torch").mkdir(parents=True, exist_ok=True)
    (folder / "torch/__init__.py").write_text("__version__ = '2.10.0+cpu'\n")
    (folder / "torch/distributed.py").write_text("")
    text = run(python, "-c", "import lockstep_torch", fails=True, PYTHONPATH=str(folder))
    last = text.splitlines()[-1]
    if not re.match(r"ImportError: lockstep_torch [\d.]+ was built for torch [\d.]+, but torch 2.10.0\+cpu is", last):
        sys.exit(f"another torch is refused with:\n{text}")


def check_commands(bin_folder):
    run(bin_folder / "lockstep-doctor", "describe")
    for name in ("bench", "ckpt", "plan"):
        run(bin_folder / "lockstep", name, "--help")
    run(bin_folder / "lockstep-ckpt", "--help")


def run_cpp(folder, bin_folder, compiler):
    prefix = run(bin_folder / "python", "-m", "lockstep_torch", "--cmake-prefix-path").strip()
    run("cmake", "-S", HERE / "wheel", "-B", folder, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}",
        f"-DCMAKE_CXX_COMPILER={compiler}")
    run("cmake", "--build", folder)
    run(bin_folder / "lockstep", "run", "--nproc-per-node", 2, folder / "program")


def check(work, packages, compiler):
    bin_folder, package, torch = work / "venv/bin", packages / "lockstep_torch", packages / "torch/lib"
    # A torch with CUDA has its libraries beside it.
    of_torch = [folder for lib in (torch, torch.resolve()) for folder in (lib, lib.parent.parent / "nvidia")]
    for program in [package / "_C.so", *package.glob("bin/*"), *package.glob("lib/bundled/*")]:
        check_libraries(program, package, *of_torch)
    check_commands(bin_folder)
    check_refusal(bin_folder / "python", work / "other")
    run(bin_folder / "python", "-m", "lockstep_torch.run", "--nproc-per-node", 2, HERE / "wheel/train.py")
    shutil.rmtree(work / "build", ignore_errors=True)
    begin = time.monotonic()
    run_cpp(work / "build", bin_folder, compiler)
    check_libraries(work / "build/program", package, *of_torch, work / "build")
    print(f"C++ project configured, built and run in {time.monotonic() - begin:.1f} s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path)
    parser.add_argument("compiler")
    parser.add_argument("packages", type=Path, nargs="+")
    parser.add_argument("--download", action="store_true")
    options = parser.parse_args()
    shutil.rmtree(options.work, ignore_errors=True)
    options.work.mkdir(parents=True)
    pip, packages = make_environment(options.work / "venv", options.download)
    for i, package in enumerate(options.packages):
        if package.is_dir():
            [package] = package.glob("lockstep_torch-*.whl")
        alone = [] if options.download and i == 0 else ["--no-deps", "--force-reinstall"]
        begin = time.monotonic()
        run(*pip, "install", *alone, package)
        run(*pip, "check")
        print(f"{package.name} installed in {time.monotonic() - begin:.1f} s", flush=True)
        check(options.work, packages, options.compiler)


if __name__ == "__main__":
    main()
