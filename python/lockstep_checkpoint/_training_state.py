# SPDX-License-Identifier: BSD-3-Clause
"""The parts of a training run by name."""

import torch
import torch.distributed as dist

from ._ranks import CheckpointError, is_distributed, rank


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
            if is_distributed(self._group):
                own, states = states[0], [None] * dist.get_world_size(self._group)
                dist.all_gather_object(states, own, group=self._group)
            return dict(enumerate(states))

        def load(states):
            own = states if isinstance(states, torch.Tensor) else states.get(rank(self._group))
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
