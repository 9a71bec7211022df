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


def expect_refusal(pattern, *command, **environment):
    """In one sentence, before anything is loaded."""
    text = run(*command, fails=True, **environment)
    if not re.search(pattern, text.splitlines()[-1]):
        sys.exit(f"expected a refusal with {pattern!r}:\n{text}")


def check_refusals(bin_folder, package, folder):
    """Another release of torch, and none at all."""
    alone, other = folder / "alone", folder / "other"
    for path in (alone, other / "torch", other / "torch-2.10.0.dist-info"):
        path.mkdir(parents=True)
    for name in ("lockstep_torch", "lockstep_commands"):
        (alone / name).symlink_to(package.parent / name)
    (other / "torch/__init__.py").write_text("__version__ = '2.10.0+cpu'\n")
    (other / "torch/distributed.py").write_text("")
    (other / "torch-2.10.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.10.0+cpu\n")
    python, show = bin_folder / "python", "import sys; sys.argv[0] = 'lockstep'; import lockstep_commands; lockstep_commands.main()"
    start = r"lockstep_torch [\d.]+ (was built for|needs) torch [\d.]+, "
    expect_refusal(f"^ImportError: {start}but torch 2.10.0\\+cpu is", python, "-c", "import lockstep_torch", PYTHONPATH=str(other))
    expect_refusal(f"^{start}but torch 2.10.0\\+cpu is", bin_folder / "lockstep", "ckpt", "show", "a.pt", PYTHONPATH=str(other))
    expect_refusal(f"^ModuleNotFoundError: {start}and no torch is", python, "-S", "-c", "import lockstep_torch", PYTHONPATH=str(alone))
    expect_refusal(f"^{start}and no torch is", python, "-S", "-c", show, "plan", PYTHONPATH=str(alone))


def check_metadata(python):
    """pip replaces no torch because of this package."""
    text = run(python, "-c", "from importlib import metadata; print(*metadata.requires('lockstep-torch'), sep='\\n')")
    if wrong := [line for line in text.splitlines() if line.startswith("torch") and "extra" not in line]:
        sys.exit(f"the package requires {wrong}")


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
    for program in [*package.glob("_C.*.so"), *package.glob("bin/*"), *package.glob("lib/bundled/*")]:
        check_libraries(program, package, *of_torch)
    check_commands(bin_folder)
    check_metadata(bin_folder / "python")
    check_refusals(bin_folder, package, work / f"refusals-{time.monotonic_ns()}")
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
        whole = options.download and i == 0
        begin = time.monotonic()
        run(*pip, "install", *([f"{package}[torch]"] if whole else ["--no-deps", "--force-reinstall", package]))
        run(*pip, "check")
        print(f"{package.name} installed in {time.monotonic() - begin:.1f} s", flush=True)
        check(options.work, packages, options.compiler)


if __name__ == "__main__":
    main()
