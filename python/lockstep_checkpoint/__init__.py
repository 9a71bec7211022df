# SPDX-License-Identifier: BSD-3-Clause
"""Checkpoint folders of Lockstep's CheckpointManager and TrainingState, read and written by Python.

    training = TrainingState()
    training.add("model", ddp).add("optimizer", optimizer).add("epoch", 0).add_generator()
    manager = CheckpointManager("runs/first", keep_last=3)
    found = manager.load_latest()
    if found:
        training.load_state_dict(found.contents)
    ...
    training["epoch"] += 1
    manager.save(step, training.state_dict(), metric=accuracy)

Names and rules are those of the C++ classes; a run that one language began continues in the other.
"""

import contextlib
import errno
import fcntl
import json
import math
import os
import re
import secrets
import shutil
import time
import warnings
import zipfile
from pathlib import Path
from typing import Any, NamedTuple, Optional

import torch
import torch.distributed as dist

_UNFINISHED = ".part"
_DOS_FOLDER = 0x10
_NO_BOOT = "00000000"
_DAY = 86400


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be written, read or loaded."""


class CheckpointInfo(NamedTuple):
    step: int
    file: Path
    metric: Optional[float]


class Checkpoint(NamedTuple):
    info: CheckpointInfo
    contents: Any


def _is_distributed(group):
    return dist.is_initialized() and dist.get_world_size(group) > 1


def _rank(group):
    return dist.get_rank(group) if dist.is_initialized() else 0


def _launched_size():
    size = os.environ.get("WORLD_SIZE", "")
    return int(size) if size.isdecimal() else 1  # init_process_group() reports another text


def _on_first(group, action):
    """The result of rank 0's `action` on every rank; its failure is one on every rank."""
    if not _is_distributed(group):
        return action()
    outcome = [None, None]
    if _rank(group) == 0:
        try:
            outcome[1] = action()
        except Exception as error:
            outcome[0] = str(error)
    dist.broadcast_object_list(outcome, group=group, group_src=0)
    if outcome[0] is not None:
        raise CheckpointError(outcome[0])
    return outcome[1]


def _step_of(name):
    found = re.fullmatch(r"step-(\d{8,})(\.pt)?", name)
    # One name a step.
    if found is None or f"{int(found[1]):08d}" != found[1]:
        return None
    return int(found[1])


def _sync_folder(path):
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
def _unfinished_file(folder):
    """A new file with a unique name, which nobody takes for a leftover; C++'s src/foundation/base/unfinished_file.cpp has a Note.

    It is removed unless it has been renamed.
    """
    while True:
        path = folder / f".lockstep-{_boot()}-{secrets.token_hex(8)}{_UNFINISHED}"
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


def _remove_dead(folder, new_file):
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


def _remove_if_unused(path):
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


def _says_unreadable(error):
    # A damaged directory leads to a seek before the file, which is EINVAL.
    return isinstance(error, MemoryError) or isinstance(error, OSError) and error.errno != errno.EINVAL


def _verify(file):
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


def _read(file, map_location):
    if file.is_dir():
        # Every rank wrote a part of it.
        from torch.distributed.checkpoint import FileSystemReader
        from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
        from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

        contents = {}
        _load_state_dict(contents, FileSystemReader(file), planner=_EmptyStateDictLoadPlanner(), no_dist=True)
        return contents
    return torch.load(file, map_location=map_location, weights_only=True)


def _write(contents, file, name):
    torch.save(contents, file)
    file.flush()
    find_refused = getattr(torch.serialization, "get_unsafe_globals_in_checkpoint", lambda _: [])  # since torch 2.6
    if refused := find_refused(file.name):
        raise CheckpointError(
            f"{name}: torch.load() would refuse {', '.join(refused)} in it; save tensors, numbers, strings, lists and "
            "dictionaries, or permit the type with torch.serialization.add_safe_globals()")


class CheckpointManager:
    """Saves, retains and loads the checkpoints of a run in one folder: C++'s CheckpointManager.

    Rank 0 writes; every rank reads. save(), remove_after() and the load functions are collective over
    `process_group`, where torch.distributed is initialized. The options are those of CheckpointManagerOptions.
    """

    def __init__(self, folder, keep_last=3, keep_best=1, higher_is_better=True, keep_every=0, sync=True,
                 process_group=None):
        for name, value in (("keep_last", keep_last), ("keep_best", keep_best), ("keep_every", keep_every)):
            if value < 0:
                raise ValueError(f"CheckpointManager: {name} = {value} is negative; give 0 or more")
        if not dist.is_initialized() and _launched_size() > 1 and os.environ.get("RANK"):
            warnings.warn(
                f"CheckpointManager: the environment says that this process is rank {os.environ['RANK']} of "
                f"{os.environ['WORLD_SIZE']}, but torch.distributed is not initialized, so every rank saves alone; call "
                "init_process_group() first")
        self.folder = Path(folder)
        self._keep = (keep_last, keep_best, keep_every)
        self._higher_is_better = higher_is_better
        self._sync = sync
        self._group = process_group
        self._damaged = set()
        self._has_written = False
        _on_first(self._group, lambda: self.folder.mkdir(parents=True, exist_ok=True))

    def save(self, step, contents, metric=None):
        """Saves rank 0's `contents` as checkpoint `step`, then applies retention. `metric`: a number or a tensor of one."""
        if step < 0:
            raise ValueError(f"CheckpointManager: step {step} is below 0")
        _on_first(self._group, lambda: self._save(step, contents, None if metric is None else float(metric)))

    def load_latest(self, map_location="cpu"):
        """The newest intact checkpoint, or None in an empty folder. Damaged ones are skipped with a warning."""
        return self._load_first(lambda: self.checkpoints()[::-1], map_location)

    def load_best(self, map_location="cpu"):
        """The intact checkpoint with the best metric, or None without one."""
        return self._load_first(lambda: self._by_metric(self.checkpoints()), map_location)

    def load(self, step, map_location="cpu"):
        """The checkpoint of one step."""
        def find():
            for info in self.checkpoints():
                if info.step == step:
                    if info.file.is_file():
                        _verify(info.file)
                    return info
            raise CheckpointError(f"{self.folder}: there is no checkpoint of step {step}")

        info = _on_first(self._group, find)
        return Checkpoint(info, _read(info.file, map_location))

    def remove_after(self, step):
        """Removes all checkpoints above `step`, which must exist: to continue from an older one."""
        def remove():
            infos = self.checkpoints()
            if all(info.step != step for info in infos):
                raise CheckpointError(f"{self.folder}: there is no checkpoint of step {step}")
            self._remove(infos, [info for info in infos if info.step > step])

        _on_first(self._group, remove)

    def checkpoints(self):
        """All checkpoints in the folder, oldest first, damaged ones included. Not collective."""
        metrics = self._metrics()
        steps = {path: _step_of(path.name) for path in self.folder.iterdir()}
        infos = [CheckpointInfo(step, path, metrics.get(step)) for path, step in steps.items() if step is not None]
        return sorted(infos, key=lambda info: info.step)

    def _metrics(self):
        file = self.folder / "metrics.json"
        if not file.exists():
            return {}
        try:
            return {int(step): float(metric) for step, metric in json.loads(file.read_text()).items()}
        except (ValueError, AttributeError, TypeError):
            warnings.warn(f"{file} is damaged; the best checkpoint is unknown")
            return {}

    def _by_metric(self, infos):
        infos = [info for info in infos if info.metric is not None and math.isfinite(info.metric)]
        sign = -1 if self._higher_is_better else 1
        return sorted(infos, key=lambda info: (sign * info.metric, -info.step))

    def _load_first(self, candidates, map_location):
        def find():
            reasons = ""
            for info in (tried := candidates()):
                try:
                    if info.file.is_file():
                        _verify(info.file)
                except CheckpointError as error:
                    self._damaged.add(info.step)
                    warnings.warn(f"skipping a damaged checkpoint: {error}")
                    reasons += f"\n  {error}"
                    continue
                self._damaged.discard(info.step)
                return info
            if tried:
                raise CheckpointError(
                    f"{self.folder}: none of the {len(tried)} checkpoints can be loaded:{reasons}")
            return None

        info = _on_first(self._group, find)
        return info and Checkpoint(info, _read(info.file, map_location))

    def _save(self, step, contents, metric):
        if not self.folder.is_dir():
            raise CheckpointError(f"{self.folder}: the checkpoint folder and its checkpoints have disappeared")
        if not self._has_written:
            self._remove_leftovers()
            self._has_written = True
        later = [info.step for info in self.checkpoints() if info.step > step and info.step not in self._damaged]
        if later:
            raise CheckpointError(
                f"{self.folder}: step {step} is not saved, because load_latest() would return the existing "
                f"checkpoint of step {later[-1]}: start with load_latest(), or use a new folder; to continue from "
                "an older checkpoint, remove the newer ones with remove_after()")
        name = self.folder / f"step-{step:08d}.pt"
        self._replace(name, lambda file: _write(contents, file, name))
        if (same := name.with_suffix("")).is_dir():
            shutil.rmtree(same)
        self._damaged.discard(step)
        infos = [info._replace(metric=metric) if info.step == step else info for info in self.checkpoints()]
        self._remove(infos, self._superfluous(infos, step))

    def _superfluous(self, infos, just_saved):
        """The checkpoints that no rule keeps."""
        keep_last, keep_best, keep_every = self._keep
        if keep_last == 0:
            return []
        whole = [info for info in infos if info.step not in self._damaged]
        kept = {just_saved, *(info.step for info in whole[-keep_last:])}
        oldest_of_last = min(kept)
        kept.update(info.step for info in self._by_metric(whole)[:keep_best])
        return [
            info for info in infos
            if info.step not in kept and not (keep_every > 0 and info.step % keep_every == 0)
            and not (info.step in self._damaged and info.step > oldest_of_last)]

    def _remove(self, infos, removed):
        """Removes checkpoints, after the metrics and the links were written for those that stay."""
        stay = [info for info in infos if info not in removed]
        metrics = {str(info.step): info.metric for info in sorted(self._by_metric(stay))}
        self._replace(
            self.folder / "metrics.json", lambda file: file.write((json.dumps(metrics, indent=1) + "\n").encode()))
        whole = [info for info in stay if info.step not in self._damaged]
        self._link("last", whole[-1:])
        self._link("best", self._by_metric(whole)[:1])
        for info in removed:
            if info.file.is_dir():
                gone = info.file.with_name(f"{info.file.name}.{secrets.token_hex(8)}{_UNFINISHED}")
                info.file.rename(gone)
                shutil.rmtree(gone)
            else:
                info.file.unlink()

    def _link(self, name, target):
        wanted = {self.folder / (name + info.file.suffix): info.file.name for info in target}
        for link in (self.folder / name, self.folder / f"{name}.pt"):
            if link not in wanted:
                link.unlink(missing_ok=True)
                continue
            unfinished = Path(f"{link}.{secrets.token_hex(8)}{_UNFINISHED}")
            unfinished.symlink_to(wanted[link])
            unfinished.rename(link)

    def _remove_leftovers(self):
        for path in self.folder.iterdir():
            if path.name.startswith(("step-", "metrics.json", "last.", "best.")) and path.suffix == _UNFINISHED:
                _remove_if_unused(path)

    def _replace(self, name, write):
        """The old or the new file is there at any moment, with any number of writers."""
        with _unfinished_file(self.folder) as file:
            _remove_dead(self.folder, file)
            write(file)
            file.flush()
            if self._sync:
                os.fsync(file.fileno())
            os.close(os.dup(file.fileno()))  # NFS reports errors of writes at close; the lock stays
            os.rename(file.name, name)
        if self._sync:
            _sync_folder(self.folder)


class TrainingState:
    """The parts of a training run by name: C++'s TrainingState.

    A part is an object with state_dict() and load_state_dict(), or a number, a bool or a string, which is then read
    and set as training[name].
    """

    def __init__(self, process_group=None):
        self._group = process_group
        self._entries = {}
        self._values = {}

    def add(self, name, part):
        if isinstance(part, torch.nn.parallel.DistributedDataParallel):
            part = part.module  # names have no prefix, as in C++
        if hasattr(part, "state_dict") and hasattr(part, "load_state_dict"):
            return self.add_functions(name, part.state_dict, part.load_state_dict)
        if not isinstance(part, (bool, int, float, str)):
            raise TypeError(
                f"TrainingState: '{name}' is a {type(part).__name__}; add an object with state_dict() and "
                "load_state_dict(), a number or a string, or use add_functions()")
        self.add_functions(name, lambda: self._values[name], lambda value: self._values.update({name: value}))
        self._values[name] = part
        return self

    def add_functions(self, name, save, load):
        """Any part, by functions that return and restore its value."""
        if name in self._entries:
            raise ValueError(f"TrainingState: there are two parts named '{name}'")
        self._entries[name] = (save, load)
        return self

    def add_generator(self, name="generator"):
        """The state of PyTorch's CPU generator on every rank. state_dict() is then collective."""
        def save():
            states = [torch.get_rng_state()]
            if _is_distributed(self._group):
                own, states = states[0], [None] * dist.get_world_size(self._group)
                dist.all_gather_object(states, own, group=self._group)
            return dict(enumerate(states))

        def load(states):
            own = states if isinstance(states, torch.Tensor) else states.get(_rank(self._group))
            if own is not None:  # a rank without a saved state keeps its own
                torch.set_rng_state(own["cpu"] if isinstance(own, dict) else own)

        return self.add_functions(name, save, load)

    def __getitem__(self, name):
        return self._values[name]

    def __setitem__(self, name, value):
        if name not in self._values:
            raise KeyError(f"TrainingState: there is no value '{name}'; add() it first")
        self._values[name] = value

    def state_dict(self):
        return {name: save() for name, (save, _) in self._entries.items()}

    def load_state_dict(self, state_dict):
        """Restores each part; other entries are ignored."""
        for name, (_, load) in self._entries.items():
            if name not in state_dict:
                raise CheckpointError(f"the checkpoint has no '{name}'")
            load(state_dict[name])
