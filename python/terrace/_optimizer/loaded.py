"""An optimizer that takes over a state_dict()."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from terrace._base.groups import Groups
from terrace._optimizer import checks
from terrace._optimizer.state_dict import states_in
from terrace._optimizer.state_view import StateView
from terrace._state.store import StateStore


class Loaded:
    """Of a class that has a store and its view, before torch's Optimizer."""

    _decoupled: bool
    _store: StateStore | None
    _view: StateView | None
    # The state_dict() that torch is loading, and who hears of its tensors.
    _loading: tuple[dict[str, Any], Any] | None = None
    defaults: dict[str, Any]
    param_groups: Groups

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over a state_dict() of this class or of torch.optim.AdamW.
        With a process_group each rank takes its share out of one that is of
        all parameters.

        Raises:
            ValueError: other groups, a tensor of another shape, amsgrad; the
                optimizer is as it was. After any other error it has no state.
        """
        self._load(state_dict, None)

    def _load(self, given: dict[str, Any],
              done_with: Callable[[Any], None] | None) -> None:
        def take(_: Any, given: dict[str, Any]) -> dict[str, Any]:
            # torch would cast the moments to the parameters' dtype.
            self._loading = given, done_with
            return {**given, 'state': {}}

        handle = self.register_load_state_dict_pre_hook(take)
        try:
            super().load_state_dict(given)
        finally:
            handle.remove()
            self._loading = None

    def __setstate__(self, state: dict[str, Any]) -> None:
        """The end of torch's load_state_dict, which calls this."""
        if self._loading is None:
            raise TypeError('terrace: the state is set by load_state_dict')
        given, done_with = self._loading
        groups = state['param_groups']
        checks.complete_all(groups, self.defaults, self._decoupled)
        states = states_in(given, self._store, groups)
        self._view.forget_copies()
        self._store.replace(states, done_with)
        self.param_groups = groups


def load_streaming(optimizer: Loaded, state_dict: dict[str, Any],
                   done_with: Callable[[Any], None]) -> None:
    """Its load_state_dict(); `done_with` hears of tensors taken over."""
    optimizer._load(state_dict, done_with)
