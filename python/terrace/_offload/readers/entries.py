"""Entries are the tensors of an offloaded model's state_dict().

Libraries that write files ask each tensor, or its storage, for its address,
which a parameter that is away does not have. An entry has its parameter's
memory for all operations and raw readers, and a copy in ordinary memory for an
address. The copy is made when an address is asked for, once for all entries
that share a storage, and lives as long as the state_dict(). Each time that the
address is asked for again, the copy gets the bytes that the parameter has by
then. Views of an entry are entries, so that their addresses lie in its copy.

An array of an entry is of that copy, and read-only, so that no write is lost:
programs take arrays of all entries, which a budget has no room to lease, and
keep them when the model is closed.
"""

from __future__ import annotations

from typing import Any

import torch

from terrace._base.library import storage_if_offloaded
from terrace._base.raw_readers import with_address
from terrace._offload.readers.copies import Copies


class Entry(torch.Tensor):
    """An entry is like a parameter's `.detach()`. Operations answer plain
    tensors, and entries where the answer has the parameter's memory."""

    _copies: Copies

    @classmethod
    def __torch_function__(cls, function: Any, types: Any,
                           arguments: Any = (), named: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            made = function(*arguments, **(named or {}))
        if type(made) is not torch.Tensor or not storage_if_offloaded(made):
            return made
        entries = [each for each in arguments if isinstance(each, Entry)]
        return _entry(made, entries[0]._copies) if entries else made

    def _plain(self) -> torch.Tensor:
        with torch._C.DisableTorchFunctionSubclass():
            return self.as_subclass(torch.Tensor)

    def data_ptr(self) -> int:
        return self._copies.of(self._plain()).data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        return with_address(self._plain().untyped_storage(), self._copies)

    def storage(self) -> Any:
        self.untyped_storage()  # It is within, and has the address then.
        return self._plain().storage()

    def _typed_storage(self) -> Any:
        self.untyped_storage()  # The same holds here.
        return self._plain()._typed_storage()

    def numpy(self, *arguments: Any, **named: Any) -> Any:
        plain = self._plain()
        if not storage_if_offloaded(plain):
            return plain.numpy(*arguments, **named)
        array = self._copies.of(plain).numpy(*arguments, **named)
        array.flags.writeable = False
        return array

    def __array__(self, *arguments: Any, **named: Any) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return super().__array__(*arguments, **named)  # It calls numpy().

    def __dlpack__(self, *arguments: Any, **named: Any) -> Any:
        return self._plain().__dlpack__(*arguments, **named)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._plain().__reduce_ex__(protocol)

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        memo[id(self)] = copy = self.clone()
        return copy


def offer_addresses(model: torch.nn.Module, made: dict[str, Any], prefix: str,
                    metadata: Any) -> None:
    """A hook that torch calls after a state_dict() was made."""
    copies = Copies()
    for name, _ in model.named_parameters(remove_duplicate=False):
        tensor = made.get(prefix + name)
        if type(tensor) is torch.Tensor and storage_if_offloaded(tensor):
            made[prefix + name] = _entry(tensor, copies)


def _entry(tensor: torch.Tensor, copies: Copies) -> Entry:
    entry = tensor.as_subclass(Entry)
    entry._copies = copies
    return entry
