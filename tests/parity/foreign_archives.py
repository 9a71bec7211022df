# SPDX-License-Identifier: BSD-3-Clause
"""Odd tar archives of samples, for foreign_files.py."""
import gzip
import io
import tarfile

from webdataset.tariterators import tarfile_samples

from foreign_values import Case


def member(name, data=b"data", **fields):
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, data


def tar(*members, form=tarfile.PAX_FORMAT, **options):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=form, **options) as archive:
        for info, data in members:
            archive.addfile(info, io.BytesIO(data))
    return file.getvalue()


ONE = [member("a.jpg", b"picture"), member("a.cls", b"3")]
TWO = ONE + [member("b.jpg", b"x" * 600), member("b.cls", b"4")]
WHOLE = tar(*TWO)
LONG = "d" * 90 + "/" + "e" * 120 + ".jpg"
END = bytes(1024)
USED = 512 * 8 + 512  # headers, and contents filled up


def changed(place, data, archive=WHOLE):
    return archive[:place] + data + archive[place + len(data):]


def with_checksum(archive, place=0):
    block = bytearray(archive[place:place + 512])
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return changed(place, bytes(block), archive)


FILES = {
    "tar archive": [tar(*TWO, form=form) for form in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)]
                   + [tar(*ONE, member("e/f.txt", b"")), tar(*ONE, member("./b.jpg")), tar(*ONE, member("\u65e5\u672c.jpg")),
                      tar(*ONE, member("a.JPG", b"other")), tar(*ONE, member("a b.c.d.txt")), tar(*ONE, member("b")), tar(*ONE, member(".b"))],
    "tar archive with long names": [tar(*ONE, member(LONG), form=form) for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)],
    "tar archive with links and folders": [tar(*ONE, member("b", b"", type=kind, linkname="a.jpg")) for kind in
                                           (tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE)],
    "tar archive with attributes": [tar(*ONE, member("b.jpg", pax_headers={"mtime": "1.5", "comment": "x", "SCHILY.xattr.u": "\u00e9"})),
                                    tar(*ONE, pax_headers={"comment": "for all"}), tar(*ONE, member("b.jpg", uid=1 << 30, mtime=1 << 40),
                                                                                     form=tarfile.GNU_FORMAT)],
    "tar archive without its end": [WHOLE[:USED], WHOLE[:USED + 512], WHOLE[:USED + 1024]],
    "tar archive with bytes behind its end": [WHOLE[:USED + 1024] + b"more" * 200],
    "tar archive and another one": [WHOLE[:USED] + tar(member("c.jpg")), tar(*ONE) + tar(member("c.jpg"))],
    "tar archive with one block of zeros between": [WHOLE[:USED] + bytes(512) + tar(member("c.jpg"))],
    "tar archive cut in a header": [WHOLE[:USED - 512 * 2 + 100]],
    "tar archive cut in contents": [WHOLE[:512 * 5 + 100]],
    "tar archive cut in the filling of the last contents": [WHOLE[:USED - 500]],
    "tar archive with a damaged header": [changed(512 * 2 + 5, b"X"), changed(3, b"X"), changed(512 * 2, b"\xff" * 512)],
    "tar archive with a damaged size": [with_checksum(changed(124, b"9" * 11)), with_checksum(changed(124, b"x" * 11))],
    "tar archive with an empty size": [with_checksum(changed(124, bytes(12), tar(member("a.jpg", b""), member("a.cls"))))],
    "tar archive of an unknown type": [with_checksum(changed(156, b"Z"))],
    "tar archive of an old type": [with_checksum(changed(156, b"\0")), with_checksum(changed(156, b"7"))],
    "tar archive with a file twice": [tar(*ONE, member("a.jpg", b"again")), tar(*ONE, *ONE)],
    "tar archive with names that are not UTF-8": [tar(*ONE, member("\udce9.jpg"), form=form) for form in
                                                  (tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT)],
    "tar archive, compressed": [gzip.compress(WHOLE)],
    "tar archive without files": [tar(), END, tar(member("b", b"", type=tarfile.DIRTYPE))],
    "no tar archive": [b"", b"no tar archive\n", bytes(100), b"x" * 512, b"x" * 2000],
}


def samples(path):
    found = []
    for sample in tarfile_samples([{"url": str(path)}]):
        fields = {name: bytes(data) for name, data in sample.items() if not name.startswith("__")}
        found.append((sample["__key__"].encode("utf-8", "surrogateescape"), dict(sorted(fields.items()))))
    if not found:
        raise ValueError("no samples")
    return found


def cases(folder):
    for kind, files in FILES.items():
        for number, data in enumerate(files):
            path = folder / f"{kind.replace(' ', '_').replace(',', '')}{number}.tar"
            path.write_bytes(data)
            yield Case(kind, "webdataset", "tar archive", path, lambda: samples(path))
