"""What modules have beside their tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


class ExtraStates:
    """get_extra_state() and set_extra_state() of all of a model's modules that
    have them, by their names in its state_dict(): a thing with a state_dict().
    """

    def __init__(self, model: torch.nn.Module) -> None:
        has_none = torch.nn.Module.get_extra_state
        self._modules = {
            f'{name}.{_NAME}' if name else _NAME: module
            for name, module in model.named_modules()
            if type(module).get_extra_state is not has_none}

    def state_dict(self) -> dict[str, Any]:
        return {name: module.get_extra_state()
                for name, module in self._modules.items()}

    def load_state_dict(self, states: Mapping[str, Any]) -> None:
        for name, state in states.items():
            self._modules[name].set_extra_state(state)

    def check_fit(self, directory: str, states: Mapping[str, Any]) -> None:
        """ValueError: these are of other modules."""
        for name in states.keys() ^ self._modules.keys():
            places = ['the model', 'the checkpoint']
            has, lacks = places if name in self._modules else places[::-1]
            raise ValueError(f'terrace: {directory} is of another model: {has} '
                             f'has {name}, {lacks} has not')


_NAME = '_extra_state'
