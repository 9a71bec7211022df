# SPDX-License-Identifier: BSD-3-Clause
"""Files that appear whole, and the leftovers of writers that have died."""

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import time
from pathlib import Path

UNFINISHED = ".part"
_NO_BOOT = "00000000"
_DAY = 86400


def sync_folder(path):
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _boot():
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
    except OSError:
        return _NO_BOOT


def _lock(file):
    """Whether the lock was taken, or there are no locks; False if somebody else holds it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


@contextlib.contextmanager
def unfinished_file(folder):
    """A new file with a unique name, which nobody takes for a leftover; C++'s src/foundation/base/unfinished_file.cpp has a Note.

    It is removed unless it has been renamed.
    """
    while True:
        path = folder / f".lockstep-{_boot()}-{secrets.token_hex(8)}{UNFINISHED}"
        file = open(path, "xb")
        if _lock(file) and path.exists():
            break
        file.close()
        path.unlink(missing_ok=True)
    try:
        with file:
            yield file
    finally:
        path.unlink(missing_ok=True)


def remove_dead(folder, new_file):
    """Removes the unfinished files of dead writers of this boot, and of other ones a day later."""
    now = os.fstat(new_file.fileno()).st_ctime
    for path in folder.iterdir():
        found = re.fullmatch(r"\.lockstep-([0-9a-f]{8})-[0-9a-f]{16}\.part", path.name)
        if found is None or path.is_symlink() or not path.is_file():
            continue
        # NFS locks only files that are open for writing.
        with contextlib.suppress(OSError), open(path, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_own = found[1] == _boot() != _NO_BOOT
            if is_own or os.fstat(file.fileno()).st_mtime < now - _DAY:
                path.unlink()


def remove_if_unused(path):
    """Removes a file or folder that nobody has locked; a link, and what has no locks, when it is a day old."""
    with contextlib.ExitStack() as stack, contextlib.suppress(FileNotFoundError):
        is_dead = path.lstat().st_mtime < time.time() - _DAY
        with contextlib.suppress(OSError):
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            stack.callback(os.close, handle)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return  # its writer lives
            is_dead = True
        if is_dead:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def replace_file(name, write, sync):
    """Writes a new file in place of `name`: the old or the new one is there at any moment, with any number of writers."""
    with unfinished_file(name.parent) as file:
        remove_dead(name.parent, file)
        write(file)
        file.flush()
        if sync:
            os.fsync(file.fileno())
        os.close(os.dup(file.fileno()))  # NFS reports errors of writes at close; the lock stays
        os.rename(file.name, name)
    if sync:
        sync_folder(name.parent)
