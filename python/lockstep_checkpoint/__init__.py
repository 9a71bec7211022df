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

from ._manager import Checkpoint, CheckpointInfo, CheckpointManager
from ._ranks import CheckpointError
from ._training_state import TrainingState

__all__ = ["Checkpoint", "CheckpointError", "CheckpointInfo", "CheckpointManager", "TrainingState"]

for _public in (Checkpoint, CheckpointError, CheckpointInfo, CheckpointManager, TrainingState):
    _public.__module__ = __name__  # where users find them, in messages and pickles too
