# SPDX-License-Identifier: BSD-3-Clause
"""Installs the wheel beside a torch and uses nothing else: wheel_test.py <folder of the wheel> <folder> <compiler>

The environment is a fresh one that sees the torch of this interpreter. Trains in Python, then builds and runs a C++
project with the wheel's CMake package.
"""

import os
import re
import shutil
import site
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
# glibc, the compiler's libraries and what the kernel adds; all others are in the wheel or are torch's.
SYSTEM = re.compile(r"lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s)\.so\.\d+$|ld-linux|linux-vdso")


def run(*command, fails=False, **environment):
    clean = {name: text for name, text in os.environ.items() if name not in ("PYTHONPATH", "LD_LIBRARY_PATH")}
    result = subprocess.run(
        [str(word) for word in command], env=dict(clean, **environment), text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT)
    if (result.returncode != 0) != fails:
        sys.exit(f"{command} ended with {result.returncode}:\n{result.stdout}")
    return result.stdout


def make_environment(folder):
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    [packages] = folder.glob("lib/python*/site-packages")
    around = site.getsitepackages()[0]
    (packages / "torch").symlink_to(f"{around}/torch")
    (packages / "around.pth").write_text(around + "\n")  # what torch imports
    return packages


def check_libraries(program, *allowed):
    for line in run("ldd", program).splitlines():
        name, path = (line.split("=>") + [""])[:2]
        path = os.path.normpath(path.split("(")[0].strip() or name.split("(")[0].strip())
        if not SYSTEM.search(path) and not path.startswith(tuple(map(str, allowed))):
            sys.exit(f"{program} needs {line.strip()}")


def check_refusal(python, folder):
    """Another release of torch is refused in one sentence, before anything is loaded."""
    (folder / "torch").mkdir(parents=True)
    (folder / "torch/__init__.py").write_text("__version__ = '2.12.1+cpu'\n")
    (folder / "torch/distributed.py").write_text("")
    text = run(python, "-c", "import lockstep_torch", fails=True, PYTHONPATH=str(folder))
    last = text.splitlines()[-1]
    if not re.match(r"ImportError: lockstep_torch [\d.]+ was built for torch [\d.]+, but torch 2.12.1\+cpu is", last):
        sys.exit(f"another torch is refused with:\n{text}")


def main(wheels, work, compiler):
    work = Path(work)
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    packages = make_environment(work / "venv")
    [wheel] = Path(wheels).glob("lockstep_torch-*.whl")
    bin_folder = work / "venv/bin"
    python = bin_folder / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", "--quiet", wheel)
    path = f"{bin_folder}:{os.environ['PATH']}"
    torch = packages / "torch/lib"
    package = packages / "lockstep_torch"
    for program in [package / "_C.so", *package.glob("bin/*"), *package.glob("lib/bundled/*")]:
        check_libraries(program, package, torch, torch.resolve())
    check_refusal(python, work / "other")

    run(python, "-m", "lockstep_torch.run", "--nproc-per-node", 2, HERE / "wheel/train.py", PATH=path)
    run(bin_folder / "lockstep-data", "--help")
    prefix = run(python, "-m", "lockstep_torch", "--cmake-prefix-path").strip()
    run("cmake", "-S", HERE / "wheel", "-B", work / "build", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}",
        f"-DCMAKE_CXX_COMPILER={compiler}")
    run("cmake", "--build", work / "build")
    check_libraries(work / "build/program", package, torch, torch.resolve(), work / "build")
    run(bin_folder / "lockstep", "run", "--nproc-per-node", 2, work / "build/program", PATH=path)


if __name__ == "__main__":
    main(*sys.argv[1:])
