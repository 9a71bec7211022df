# SPDX-License-Identifier: BSD-3-Clause
"""Builds the documentation site; scripts/docs.sh describes it. Nothing is fetched, and a warning is an error."""

import gc
import json
import shutil
import sys
from argparse import ArgumentParser
from pathlib import Path

from sphinx.cmd.build import main as sphinx

import headers
import pages

ROOT = Path(__file__).resolve().parents[2]
REDIRECT = '<!doctype html><meta charset="utf-8"><title>Lockstep</title><meta http-equiv="refresh" content="0; url={0}/index.html"><a href="{0}/index.html">Lockstep {0}</a>\n'


def write(folder, files):
    """Makes `folder` hold these files and no others. Those that are the same keep their time, so that Sphinx skips them."""
    for old in sorted(folder.rglob("*"), reverse=True):
        if old.is_file() and old.relative_to(folder).as_posix() not in files:
            old.unlink()
    for name, content in files.items():
        path = folder / name
        if not path.exists() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def order(version):
    return [int(part) for part in version.split(".")]


def add_to_versions(output):
    """The script from which every page makes its list of versions, and a start page that opens the newest."""
    names = [path.parent.name for path in output.glob("*/index.html") if path.parent.name.replace(".", "").isdigit()]
    versions = sorted(names, key=order, reverse=True)
    (output / "versions.js").write_text(f"const LOCKSTEP_VERSIONS = {json.dumps(versions)};\n")
    (output / "index.html").write_text(REDIRECT.format(versions[0]))


def main():
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("output", nargs="?", type=Path, default=ROOT / "build/docs/html")
    output = parser.parse_args().output.resolve()
    work = ROOT / "build/docs"
    work.mkdir(parents=True, exist_ok=True)
    warnings = headers.run_doxygen(ROOT, work / "doxygen.new")
    if warnings:
        sys.exit("\n".join(warnings))
    new = work / "doxygen.new/xml"
    write(work / "doxygen/xml", {path.name: headers.readable(path.read_text()).encode() for path in new.iterdir()})
    site = pages.site_of(ROOT, headers.contents(work / "doxygen/xml"))
    gc.disable()  # Sphinx makes millions of objects and few cycles: half the time
    write(work / "source", {**{name: text.encode() for name, text in site.texts.items()}, **site.files})
    version = ".".join(headers.version(ROOT))
    arguments = ["-W", "--keep-going", "-q", "-b", "html", "-c", str(ROOT / "docs"), "-d", str(work / "doctrees"),
                 str(work / "source"), str(output / version)]
    if sphinx(arguments):
        shutil.rmtree(work / "doctrees")  # the next build reads all pages, and warns again
        sys.exit("the documentation has errors: see above. A path below build/docs/source is that of the page in docs/")
    add_to_versions(output)
    print(f"The documentation is in {output / 'index.html'}")


if __name__ == "__main__":
    main()
