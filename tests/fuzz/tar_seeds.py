# SPDX-License-Identifier: BSD-3-Clause
"""Writes small tar files, each after a byte 1: tar_seeds.py <folder>"""
import io
import pathlib
import sys
import tarfile

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
NAMES = ["a.jpg", "a.cls", "b.seg.png", "f/b.cls", "f/.hidden", "__meta__/x.json", "g" * 90 + "/" + "h" * 90 + ".cls",
         "long" * 80 + ".txt"]
OTHERS = [tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CONTTYPE, tarfile.GNUTYPE_SPARSE, b"V", b"\0"]


def write(path, kind, names, types=(), **options):
    with tarfile.open(path, "w", format=FORMATS[kind], **options) as tar:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = len(name)
            try:
                tar.addfile(info, io.BytesIO(name.encode()))
            except ValueError:
                continue  # ustar has no room for the name
        for number, other in enumerate(types):
            info = tarfile.TarInfo(f"{number}.x")
            info.type = other
            info.linkname = "target"
            tar.addfile(info)


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for kind in FORMATS:
        write(folder / kind, kind, NAMES)
        for number, other in enumerate(OTHERS):
            write(folder / f"{kind}-type{number}", kind, NAMES[:1], [other])
    write(folder / "pax-global", "pax", NAMES[:2], pax_headers={"comment": "for all files"})
    write(folder / "pax-global-path", "pax", NAMES[:2], pax_headers={"path": "for all files"})
    with tarfile.open(folder / "pax-size", "w", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("a.jpg")
        info.pax_headers = {"size": "3", "path": "b.jpg"}
        info.size = 3
        tar.addfile(info, io.BytesIO(b"abc"))
    large = tarfile.TarInfo("a.jpg")
    large.size = 1 << 40  # in base 256
    (folder / "base256").write_bytes(large.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    for path in folder.iterdir():
        # Python fills archives up to 10240 bytes.
        path.write_bytes(b"\1" + path.read_bytes().rstrip(b"\0") + bytes(1536))


main()
