# SPDX-License-Identifier: BSD-3-Clause
"""Checkpoint folders in Python: every kind of damage, and the calls of several ranks: checkpoint_test.py"""

import errno
import subprocess
import sys
import tempfile
import warnings
import zipfile
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist

from python_ranks import RANKS, check_error, join, run
from lockstep_checkpoint import CheckpointError, CheckpointManager, TrainingState


def flips(data):
    """Each byte in turn, and each bit of the fixed part of the directory's last entry."""
    last = data.rindex(b"PK\x01\x02")
    for place in range(len(data)):
        yield place, 0xFF
        for bit in range(8) if last <= place < last + 46 else ():
            yield place, 1 << bit


def check_damage(folder):
    """A damaged checkpoint is skipped, whatever is damaged: what is loaded was saved."""
    manager = CheckpointManager(folder, sync=False)
    contents = [{"step": step, "weights": torch.arange(4.0) + step} for step in range(2)]
    for step in range(2):
        manager.save(step, contents[step])
    file = manager.checkpoints()[-1].file
    data = file.read_bytes()
    skipped = 0
    for place, mask in flips(data):
        damaged = bytearray(data)
        damaged[place] ^= mask
        file.write_bytes(damaged)
        found = manager.load_latest()
        expected = contents[found.info.step]
        assert found.contents["step"] == expected["step"], (place, mask, found)
        assert torch.equal(found.contents["weights"], expected["weights"]), (place, mask, found)
        skipped += found.info.step == 0
    assert skipped > len(data) // 4, skipped  # most of the rest pads the records
    for length in range(0, len(data), 29):
        file.write_bytes(data[:length])
        assert manager.load_latest().info.step == 0, length
        check_error(CheckpointError, file.name, lambda: manager.load(1))
    file.write_bytes(data)


def check_refused_types(folder):
    """What torch.load() refuses without its types' permission is not saved, and the last checkpoint stays."""
    manager = CheckpointManager(folder, sync=False)
    before = manager.load_latest().info
    check_error(CheckpointError, "PosixPath", lambda: manager.save(before.step + 1, {"folder": Path("a")}))
    assert manager.load_latest().info == before


def check_unreadable(folder):
    """A checkpoint that cannot be read may be intact, so no older one takes its place."""
    manager = CheckpointManager(folder, sync=False)
    latest = manager.checkpoints()[-1].step
    for error in (OSError(errno.EIO, "the disk fails"), MemoryError("there is no memory")):
        with mock.patch.object(zipfile.ZipExtFile, "read", side_effect=error):
            check_error(type(error), str(error), manager.load_latest)
    with mock.patch.object(zipfile, "_EndRecData", side_effect=OSError(errno.EIO, "the disk fails")):
        check_error(zipfile.BadZipFile, "not a zip file", manager.load_latest)
    assert manager.load_latest().info.step == latest


def check_choice(rank, folder):
    """Rank 0 writes, chooses and fails for all ranks."""
    manager = CheckpointManager(folder, sync=False)
    assert manager.load_latest() is None
    for step in range(1, 4):
        manager.save(step, {"rank": rank, "step": step}, metric=step % 2 + rank)
    assert manager.load_latest().contents == {"rank": 0, "step": 3}
    check_error(CheckpointError, "step 2 is not saved", lambda: manager.save(2, {}))
    check_error(CheckpointError, "there is no checkpoint of step 7", lambda: manager.load(7))
    check_error(CheckpointError, "there is no checkpoint of step 7", lambda: manager.remove_after(7))
    latest = manager.checkpoints()[-1].file
    dist.barrier()
    if rank == 0:
        latest.write_bytes(latest.read_bytes()[:-1])
    assert manager.load_latest().info.step == 2
    assert manager.load_best().info.step == 1
    manager.remove_after(2)
    assert [info.step for info in manager.checkpoints()] == [1, 2]
    dist.barrier()


def check_generators(rank, folder):
    """Every rank has its own random state again; a rank without a saved one keeps its own."""
    training = TrainingState().add("step", 5).add_generator()
    torch.manual_seed(10 + rank)
    state = training.state_dict()
    assert set(state) == {"step", "generator"} and set(state["generator"]) == set(range(RANKS)), state
    assert not torch.equal(*state["generator"].values())
    manager = CheckpointManager(folder, sync=False)
    manager.save(5, state)
    drawn = torch.rand(3)
    training["step"] = 0
    training.load_state_dict(manager.load_latest().contents)
    assert training["step"] == 5 and torch.equal(torch.rand(3), drawn)
    training.load_state_dict({"step": 6, "generator": {0: state["generator"][0]}})
    assert torch.equal(torch.rand(3), drawn) == (rank == 0)


def check_subgroup(rank, folder):
    """The first rank of the group writes; the others take no part."""
    group = dist.new_group([1])
    if rank == 1:
        manager = CheckpointManager(folder, sync=False, process_group=group)
        state = TrainingState(group).add_generator().state_dict()
        assert set(state["generator"]) == {0}, state
        manager.save(1, {"rank": rank})
        assert manager.load_latest().contents == {"rank": 1}
    dist.barrier()


def check_import():
    """The module is of Python alone: it needs no library of Lockstep, and so takes any torch."""
    code = "import sys, lockstep_checkpoint; assert not [name for name in sys.modules if name.startswith('lockstep_torch')]"
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)


def rank_main(rank, port, root):
    warnings.simplefilter("ignore")
    join(rank, "shm", port)
    check_choice(rank, root / "choice")
    check_generators(rank, root / "generators")
    check_subgroup(rank, root / "subgroup")
    dist.destroy_process_group()


def main():
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # one for each skipped checkpoint
            check_damage(root / "damage")
            check_refused_types(root / "damage")
            check_unreadable(root / "damage")
        check_import()
        run(rank_main, RANKS, root, limit=60)


if __name__ == "__main__":
    main()
