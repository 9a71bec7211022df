# SPDX-License-Identifier: BSD-3-Clause
"""The contents of one checkpoint: written, compared with their checksums, and read."""

import errno
import zipfile

import torch

from ._ranks import CheckpointError

_DOS_FOLDER = 0x10


def _says_unreadable(error):
    # A damaged directory leads to a seek before the file, which is EINVAL.
    return isinstance(error, MemoryError) or isinstance(error, OSError) and error.errno != errno.EINVAL


def verify(file):
    """Compares the checksums of all records. A file that cannot be read may be intact: its error propagates."""
    try:
        with zipfile.ZipFile(file) as archive:
            damaged = archive.testzip()
            folders = [info.filename for info in archive.infolist() if info.external_attr & _DOS_FOLDER]
        torch._C.PyTorchFileReader(str(file))  # refuses more than zipfile
    except Exception as error:  # damage raises NotImplementedError, UnicodeDecodeError, struct.error and others too
        if _says_unreadable(error) or _says_unreadable(error.__context__):  # BadZipFile hides an OSError
            raise
        raise CheckpointError(f"{file}: the archive is damaged: {error!r}") from error
    if damaged is not None:
        raise CheckpointError(f"{file}: the checksum of {damaged} does not fit")
    if folders:  # torch.load() returns memory that nobody has written for these
        raise CheckpointError(f"{file}: the archive is damaged: {folders[0]} is a folder")


def read(file, map_location):
    if file.is_dir():
        # Every rank wrote a part of it.
        from torch.distributed.checkpoint import FileSystemReader
        from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
        from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

        contents = {}
        _load_state_dict(contents, FileSystemReader(file), planner=_EmptyStateDictLoadPlanner(), no_dist=True)
        return contents
    return torch.load(file, map_location=map_location, weights_only=True)


def write(contents, file, name):
    torch.save(contents, file)
    file.flush()
    find_refused = getattr(torch.serialization, "get_unsafe_globals_in_checkpoint", lambda _: [])  # since torch 2.6
    if refused := find_refused(file.name):
        raise CheckpointError(
            f"{name}: torch.load() would refuse {', '.join(refused)} in it; save tensors, numbers, strings, lists and "
            "dictionaries, or permit the type with torch.serialization.add_safe_globals()")
