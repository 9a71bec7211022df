# SPDX-License-Identifier: BSD-3-Clause
"""Whose code a build tree and its wheel contain or load, from what the compiler has read and the programs link."""

import re
import shutil
import subprocess
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

# By Debian's source package; the licences of the parts that are used. A package without a line is an error.
LICENCES = {
    "cli11": "BSD-3-Clause",
    "curl": "curl",
    "elfutils": "LGPL-3.0-or-later OR GPL-2.0-or-later",
    "fmtlib": "MIT",
    "gcc": "GPL-3.0-or-later WITH GCC-exception-3.1",
    "glibc": "LGPL-2.1-or-later",
    "gloo": "BSD-3-Clause",
    "hdf5": "BSD-3-Clause",
    "libjpeg-turbo": "IJG AND BSD-3-Clause AND Zlib",
    "libmicrohttpd": "LGPL-2.1-or-later",
    "libpng1.6": "libpng-2.0",
    "libwebp": "BSD-3-Clause",
    "libzstd": "BSD-3-Clause",
    "ncurses": "X11-distribute-modifications-variant",
    "nlohmann-json3": "MIT",
    "openssl": "Apache-2.0",
    "pybind11": "BSD-3-Clause",
    "python": "PSF-2.0",
    "torch": "BSD-3-Clause",
    "zlib": "Zlib",
}
# Opened when a call needs them: nothing links them, and nothing of them but declarations is compiled in.
LOADED = {"curl", "elfutils", "hdf5", "libmicrohttpd", "ncurses"}
# What a compiler adds to any program of C++.
TOOLCHAIN = re.compile(r"^(lib(c6|stdc\+\+-\d+|gcc-\d+)-dev|linux-libc-dev|g(cc|\+\+)-\d+|cpp-\d+)$")
# The parts of a build tree that are installed.
INSTALLED = re.compile(r"^(src|tools|python)/|^CMakeFiles/lockstep_(layer|program)_pch\.dir/|^lockstep_(layer|program)_pch\.dir/")
OF_TORCH = re.compile(r"^lib(c10|torch)(_\w+)?\.so")


@dataclass(frozen=True, order=True)
class Library:
    """<use>: "compiled in", "bundled in the wheel", "linked", or "loaded when it is needed"."""
    name: str
    version: str
    use: str
    packages: tuple = ()  # Debian's binary packages

    @property
    def licence(self):
        return licence_of(self.name)


def licence_of(source):
    name = re.sub(r"^(python|gcc)[-\d.]+$", r"\1", source)
    if name not in LICENCES:
        raise SystemExit(f"error: no licence is known for {source}: add it to LICENCES in {__file__}")
    return LICENCES[name]


def run(*command):
    return subprocess.run([str(word) for word in command], check=True, text=True, stdout=subprocess.PIPE).stdout


def headers_of(dependencies):
    """The headers of installed parts in the output of `ninja -t deps`."""
    found = set()
    wanted = False
    for line in dependencies.splitlines():
        if line.startswith("    "):
            if wanted:
                found.add(line.strip())
        elif line:
            wanted = bool(INSTALLED.match(line)) and "lockstep_mpi.dir" not in line  # no package contains that module
    return found


def needed(program):
    """The libraries that a program or library names."""
    return re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "-d", program))


def owners(files):
    """{Debian's package: its files among these}; the others are left out."""
    result = subprocess.run(["dpkg", "-S", *files], text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    found = {}
    for line in result.stdout.splitlines():
        packages, _, file = line.partition(": ")
        found.setdefault(packages.split(",")[0].split(":")[0], set()).add(file)
    return found


def library_files(names):
    """Where the loader of this machine finds them."""
    paths = {}
    for line in run("/sbin/ldconfig", "-p").splitlines():
        match = re.match(r"\s+(\S+) \(libc6,x86-64.*=> (\S+)", line)
        if match and match[1] in names:
            real = Path(match[2]).resolve()
            paths[match[1]] = [str(real), str(real).removeprefix("/usr")]
    return paths


def source_of(package):
    return tuple(run("dpkg-query", "-W", "-f", "${source:Package} ${source:Version}", package).split())


def by_source(packages, use):
    """Libraries, one for each source package."""
    found = {}
    for package in sorted(packages):
        found.setdefault(source_of(package), []).append(package)
    return [Library(name, version, use, tuple(names)) for (name, version), names in found.items()]


def torch_folder(tree):
    """The LibTorch of a build tree, whose Torch_DIR is that folder or the one of TorchConfig.cmake."""
    cache = (Path(tree) / "CMakeCache.txt").read_text()
    folder = Path(re.search(r"^Torch_DIR:[A-Z]+=(.*)$", cache, re.MULTILINE)[1]).resolve()
    return folder.parents[2] if (folder / "TorchConfig.cmake").exists() else folder


def compiled_in(tree):
    """The libraries whose headers the installed parts of the tree include, without the toolchain's and LibTorch's."""
    tree, torch = Path(tree).resolve(), torch_folder(tree)
    real = {str((tree / header).resolve()) for header in headers_of(run("ninja", "-C", tree, "-t", "deps"))}
    elsewhere = sorted(path for path in real if path.startswith("/usr/") and not path.startswith(str(torch)))
    found = by_source([package for package in owners(elsewhere) if not TOOLCHAIN.match(package)], "compiled in")
    if any(path.startswith(f"{torch}/include/pybind11/") for path in real):
        text = (torch / "include/pybind11/detail/common.h").read_text()
        numbers = [re.search(rf"#\s*define PYBIND11_VERSION_{part} (\w+)", text)[1] for part in ("MAJOR", "MINOR", "MICRO")]
        found.append(Library("pybind11", ".".join(numbers), "compiled in"))
    return found


def headers_of_pythons(tree):
    """Of other CPythons than that of the tree, for which there is a module (LOCKSTEP_PYTHON_HEADERS)."""
    match = re.search(r"^LOCKSTEP_PYTHON_HEADERS:[A-Z]+=(.*)$", (Path(tree) / "CMakeCache.txt").read_text(), re.MULTILINE)
    found = []
    for folder in filter(None, (match[1] if match else "").split(";")):
        version = re.search(r'^#define PY_VERSION\s+"(.*)"', (Path(folder) / "patchlevel.h").read_text(), re.MULTILINE)[1]
        found.append(Library("python" + ".".join(version.split(".")[:2]), version, "headers of a module of the wheel"))
    return found


def linked(programs):
    """The libraries that the programs need of the system."""
    names = {name for program in programs for name in needed(program) if not OF_TORCH.match(name)}
    files = library_files(names)
    if missing := {name for name in names if name not in files and not name.startswith("ld-linux")}:
        raise SystemExit(f"error: the loader of this machine does not find {', '.join(sorted(missing))}")
    return by_source(owners([path for paths in files.values() for path in paths]), "linked")


def libraries(tree, programs, bundled):
    """All of them. <bundled>: file names of libraries in the wheel."""
    files = library_files(set(bundled))
    in_wheel = by_source(owners([path for paths in files.values() for path in paths]), "bundled in the wheel")
    of_programs = [library for library in linked(programs) if library.name not in {other.name for other in in_wheel}]
    found = in_wheel + of_programs
    for library in compiled_in(tree):
        if library.name in {other.name for other in found}:
            continue  # its headers belong to what is linked
        use = "loaded when it is needed" if library.name in LOADED else "compiled in"
        found.append(Library(library.name, library.version, use, library.packages))
    found.append(Library("torch", metadata.version("torch"), "linked"))
    return sorted(found + headers_of_pythons(tree))


def copyright_of(library):
    """The file with its licence."""
    if not library.packages:  # torch's, or in its package
        folder = "" if library.name == "torch" else f"third_party/{library.name}/"
        [file] = [file for file in metadata.files("torch") if str(file).endswith(f".dist-info/licenses/{folder}LICENSE")]
        return Path(file.locate())
    path = Path("/usr/share/doc") / library.packages[0] / "copyright"
    if not path.exists():
        raise SystemExit(f"error: {path} is missing; this machine installs packages without their licences")
    return path


def published(found):
    """Those whose code is in what we publish. Templates of LibTorch are compiled in."""
    return [library for library in found if library.use in ("compiled in", "bundled in the wheel") or library.name == "torch"]


def copy_licences(found, folder):
    folder.mkdir(parents=True, exist_ok=True)
    for library in published(found):
        shutil.copyfile(copyright_of(library), folder / f"{library.name}.txt")
