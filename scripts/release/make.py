# SPDX-License-Identifier: BSD-3-Clause
"""Makes the files of a release from a finished build tree: make.py <version> <build tree> <folder>

The interpreter is that of the tree. Compiles nothing. scripts/release.sh checks the version and builds.
"""

import gzip
import hashlib
import os
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import scikit_build_core.build

import deb
import sbom
import third_party
import version as versions
from third_party import run

ROOT = Path(__file__).resolve().parents[2]


def source_archive(version, output):
    """What git has of this commit."""
    tar = subprocess.run(["git", "-c", "tar.umask=0022", "archive", "--format=tar", f"--prefix=lockstep-{version}/", "HEAD"], cwd=ROOT, check=True,
                         stdout=subprocess.PIPE).stdout
    path = output / f"lockstep-{version}.tar.gz"
    path.write_bytes(gzip.compress(tar, mtime=0))
    return path


def source_distribution(output):
    return output / scikit_build_core.build.build_sdist(str(output))


def wheel(tree, output):
    return Path(run(sys.executable, "-B", ROOT / "python/pack_wheel.py", tree, output).splitlines()[-1])


def libraries_of(tree, path):
    """All libraries, with those that the wheel bundles."""
    names = zipfile.ZipFile(path).namelist()
    bundled = [name.rpartition("/")[2] for name in names if "/lib/bundled/" in name]
    programs = [p for p in (tree / "bin").glob("lockstep*") if p.is_file()] + [*(tree / "python/lockstep_torch").glob("_C.*.so")]
    return third_party.libraries(tree, programs, bundled)


def write_checksums(output):
    files = sorted(path for path in output.rglob("*") if path.is_file() and path.name != "SHA256SUMS")
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(output)}\n" for path in files]
    (output / "SHA256SUMS").write_text("".join(lines))


def main(version, tree, output):
    tree, output = Path(tree).resolve(), Path(output).resolve()
    output.mkdir(parents=True)
    os.chdir(ROOT)  # pyproject.toml's folder
    epoch = int(os.environ["SOURCE_DATE_EPOCH"])
    torch = metadata.version("torch").split("+")[0]
    made = [source_archive(version, output), source_distribution(output), wheel(tree, output)]
    found = libraries_of(tree, made[-1])
    third_party.copy_licences(found, output / "licences")
    made += deb.make(tree, output, version, torch, epoch, output / "licences")
    commit = run("git", "rev-parse", "HEAD").strip()
    (output / "sbom.cdx.json").write_text(sbom.bill(version, commit, epoch, made, found))
    (output / "notes.md").write_text(versions.notes((ROOT / versions.CHANGELOG).read_text(), version))
    write_checksums(output)
    for path in sorted(output.iterdir()):
        print(f"{path.stat().st_size:>12} {path.name}" if path.is_file() else f"{'folder':>12} {path.name}")


if __name__ == "__main__":
    main(*sys.argv[1:])
