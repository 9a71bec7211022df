# SPDX-License-Identifier: BSD-3-Clause
"""The checkpoints of a run in one folder: names, retention, links."""

import json
import math
import os
import re
import secrets
import shutil
import warnings
from pathlib import Path
from typing import Any, NamedTuple, Optional

import torch.distributed as dist

from ._archive import read, verify, write
from ._files import UNFINISHED, remove_if_unused, replace_file
from ._ranks import CheckpointError, launched_size, on_first


class CheckpointInfo(NamedTuple):
    step: int
    file: Path
    metric: Optional[float]


class Checkpoint(NamedTuple):
    info: CheckpointInfo
    contents: Any


def _step_of(name):
    found = re.fullmatch(r"step-(\d{8,})(\.pt)?", name)
    # One name a step.
    if found is None or f"{int(found[1]):08d}" != found[1]:
        return None
    return int(found[1])


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
        if not dist.is_initialized() and launched_size() > 1 and os.environ.get("RANK"):
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
        on_first(self._group, lambda: self.folder.mkdir(parents=True, exist_ok=True))

    def save(self, step, contents, metric=None):
        """Saves rank 0's `contents` as checkpoint `step`, then applies retention. `metric`: a number or a tensor of one."""
        if step < 0:
            raise ValueError(f"CheckpointManager: step {step} is below 0")
        on_first(self._group, lambda: self._save(step, contents, None if metric is None else float(metric)))

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
                        verify(info.file)
                    return info
            raise CheckpointError(f"{self.folder}: there is no checkpoint of step {step}")

        info = on_first(self._group, find)
        return Checkpoint(info, read(info.file, map_location))

    def remove_after(self, step):
        """Removes all checkpoints above `step`, which must exist: to continue from an older one."""
        def remove():
            infos = self.checkpoints()
            if all(info.step != step for info in infos):
                raise CheckpointError(f"{self.folder}: there is no checkpoint of step {step}")
            self._remove(infos, [info for info in infos if info.step > step])

        on_first(self._group, remove)

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
                        verify(info.file)
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

        info = on_first(self._group, find)
        return info and Checkpoint(info, read(info.file, map_location))

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
        replace_file(name, lambda file: write(contents, file, name), self._sync)
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
        text = json.dumps(metrics, indent=1) + "\n"
        replace_file(self.folder / "metrics.json", lambda file: file.write(text.encode()), self._sync)
        whole = [info for info in stay if info.step not in self._damaged]
        self._link("last", whole[-1:])
        self._link("best", self._by_metric(whole)[:1])
        for info in removed:
            if info.file.is_dir():
                gone = info.file.with_name(f"{info.file.name}.{secrets.token_hex(8)}{UNFINISHED}")
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
            unfinished = Path(f"{link}.{secrets.token_hex(8)}{UNFINISHED}")
            unfinished.symlink_to(wanted[link])
            unfinished.rename(link)

    def _remove_leftovers(self):
        for path in self.folder.iterdir():
            if path.name.startswith(("step-", "metrics.json", "last.", "best.")) and path.suffix == UNFINISHED:
                remove_if_unused(path)
