# SPDX-License-Identifier: BSD-3-Clause
"""Debian packages of a build tree: libraries with headers, and the command line. They contain no LibTorch.

docs/releasing.md has the names and how programs find LibTorch.
"""

import gzip
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import third_party
from third_party import run

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parents[1]
MAINTAINER = "The Lockstep authors <authors@lockstep.invalid>"
# What find_package(Lockstep) asks for.
FOR_PROGRAMS = "libjpeg-dev, libpng-dev, libssl-dev, libwebp-dev, zlib1g-dev"
# Opened when a call needs them.
LOADED_BY_PROGRAMS = "libcurl4 | libcurl4t64, libhdf5-103-1 | libhdf5-310"
LOADED = f"{LOADED_BY_PROGRAMS}, libdw1 | libdw1t64, libmicrohttpd12 | libmicrohttpd12t64, libncursesw6"


def control(name, torch, version, depends, size, text, **more):
    """The file that describes a package."""
    fields = {
        "Package": name, "Version": f"{version}+torch{torch}", "Architecture": "amd64", "Maintainer": MAINTAINER,
        "Installed-Size": size, "Depends": depends, "Section": "libdevel" if name.endswith("-dev") else "science",
        "Priority": "optional", **{key.title(): value for key, value in more.items()},
        "Description": f"{text[0]}\n {text[1]}"}
    return "".join(f"{key}: {value}\n" for key, value in fields.items() if value)


def install(tree, stage):
    for component in ([], ["--component", "elsewhere"]):
        subprocess.run(["cmake", "--install", tree, "--prefix", "/usr", "--strip", *component], check=True,
                       stdout=subprocess.DEVNULL, env=dict(os.environ, DESTDIR=str(stage)))


def programs_need_torch(program):
    return any(third_party.OF_TORCH.match(name) for name in third_party.needed(program))


def starter(torch, folder):
    """A script that runs the program of its own name in the folder, with this release of LibTorch."""
    return (HERE / "with_torch.in").read_text().replace("@torch@", torch).replace("@folder@", folder)


def split(stage, dev, commands, torch):
    """Moves what is installed into the folders of the two packages."""
    wrapper = starter(torch, "/usr/lib/lockstep")
    for part in ("include", "lib"):
        (dev / "usr").mkdir(parents=True, exist_ok=True)
        shutil.move(stage / "usr" / part, dev / "usr" / part)
    for module in dev.rglob("*.so"):  # mpi's, made for the MPI of this machine
        module.unlink()
    for folder in ("usr/bin", "usr/lib/lockstep"):
        (commands / folder).mkdir(parents=True)
    for program in sorted((stage / "usr/bin").iterdir()):
        # The folders of the machine that has built it; LibTorch comes from the user's environment.
        run("patchelf", "--remove-rpath", program)
        if programs_need_torch(program):
            shutil.move(program, commands / "usr/lib/lockstep" / program.name)
            (commands / "usr/bin" / program.name).write_text(wrapper)
            (commands / "usr/bin" / program.name).chmod(0o755)
        else:
            shutil.move(program, commands / "usr/bin" / program.name)


def dependencies(programs, torch):
    """What dpkg-shlibdeps finds that the programs need, without LibTorch."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "debian").mkdir()
        (Path(folder) / "debian/control").write_text("Source: lockstep\n\nPackage: lockstep\nArchitecture: amd64\n")
        found = subprocess.run(
            ["dpkg-shlibdeps", "-O", "--ignore-missing-info", f"-l{torch / 'lib'}", *map(str, programs)], cwd=folder, check=True,
            text=True, stdout=subprocess.PIPE).stdout
    return found.removeprefix("shlibs:Depends=").strip()


def add_documents(package, name, licences):
    folder = package / "usr/share/doc" / name
    (folder / "licences").mkdir(parents=True)
    used = "".join(f"  licences/{file.name}\n" for file in sorted(licences.iterdir()))
    (folder / "copyright").write_text((SOURCE / "LICENSE").read_text() + f"\nLibraries that are compiled in, and their licences:\n{used}")
    (folder / "changelog.gz").write_bytes(gzip.compress((SOURCE / "CHANGELOG.md").read_bytes(), mtime=0))
    for file in licences.iterdir():
        shutil.copyfile(file, folder / "licences" / file.name)


def pack(package, output, epoch, text):
    """Files of root with the time of the commit; dpkg-deb reads it from SOURCE_DATE_EPOCH, too."""
    (package / "DEBIAN").mkdir()
    (package / "DEBIAN/control").write_text(text)
    for path in [package, *package.rglob("*")]:
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        os.utime(path, (epoch, epoch), follow_symlinks=False)
    name = "{Package}_{Version}_{Architecture}.deb".format(**dict(re.findall(r"^(\w+): (.*)$", text, re.MULTILINE)))
    subprocess.run(["dpkg-deb", "--root-owner-group", "-Zxz", "--build", package, output / name], check=True,
                   stdout=subprocess.DEVNULL, env=dict(os.environ, SOURCE_DATE_EPOCH=str(epoch)))
    return output / name


def make(tree, output, version, torch, epoch, licences):
    """The two packages. <torch>: the release with which the tree was built; <licences>: a folder of texts."""
    minor = torch.rpartition(".")[0]
    dev_name, commands_name = f"liblockstep-torch{minor}-dev", f"lockstep-torch{minor}"
    with tempfile.TemporaryDirectory() as folder:
        stage, dev, commands = (Path(folder) / name for name in ("stage", "dev", "commands"))
        install(tree, stage)
        split(stage, dev, commands, torch)
        for package, name in ((dev, dev_name), (commands, commands_name)):
            add_documents(package, name, licences)
        depends = dependencies([p for f in ("usr/bin", "usr/lib/lockstep") for p in sorted((commands / f).iterdir())
                                if p.read_bytes()[:4] == b"\x7fELF"], third_party.torch_folder(tree))

        def size(package):
            return sum(path.stat().st_size for path in package.rglob("*") if path.is_file()) // 1024 + 1
        yield pack(dev, output, epoch, control(
            dev_name, torch, version, FOR_PROGRAMS, size(dev),
            (f"distributed training for LibTorch {torch}: libraries and headers",
             "Static libraries, headers and the CMake package Lockstep. LibTorch is the user's own."),
            suggests=f"{commands_name}, cmake, ninja-build, {LOADED_BY_PROGRAMS}", provides="liblockstep-dev", conflicts="liblockstep-dev"))
        yield pack(commands, output, epoch, control(
            commands_name, torch, version, depends, size(commands),
            (f"distributed training for LibTorch {torch}: command line",
             "The launcher `lockstep run` and the other commands. LibTorch is the user's own."),
            recommends="python3", suggests=LOADED, provides="lockstep", conflicts="lockstep"))
