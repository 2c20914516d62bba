"""Finds and loads the one compiled file of the package."""

from __future__ import annotations

import functools
import pathlib
import re
from collections.abc import Callable
from typing import Any

import torch

from terrace._base.errors import Outcome, check
from terrace._base.process_lock import ProcessLock

_FOLDER = pathlib.Path(__file__).resolve().parent.parent  # the package's
_NAME = re.compile(r'terrace_torch-(\d+\.\d+)\.so')
_lock = ProcessLock()
_loaded: pathlib.Path | None = None


def built_for() -> dict[str, pathlib.Path]:
    """The compiled files of the package, by the torch they were built for:
    {'2.11': .../terrace_torch-2.11.so}."""
    found = {}
    for path in _FOLDER.glob('terrace_torch-*.so'):
        match = _NAME.fullmatch(path.name)
        if match:
            found[match[1]] = path
    return found


def load() -> pathlib.Path:
    """Loads the file for this torch, once; returns its path.

    Raises ImportError, in one sentence, where there is none: a file built for
    another torch would fail with a list of missing symbols.
    """
    global _loaded
    with _lock:
        if _loaded is not None:
            return _loaded
        version = '.'.join(torch.__version__.split('.')[:2])
        files = built_for()
        if version not in files:
            built = ', '.join(sorted(files)) or 'no torch at all'
            raise ImportError(
                f'terrace was built for torch {built} and this is torch '
                f'{torch.__version__}: run `pip install --force-reinstall '
                'terrace` in this environment', name='terrace')
        torch.ops.load_library(str(files[version]))
        _loaded = files[version]
        return _loaded


class Native:
    """An object of the library, whose calls no class of a program's tensors
    sees: torch would hand them to its __torch_function__ as calls without a
    name."""

    def __init__(self, made: Any) -> None:
        self.object = made  # for what takes one

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name == 'object' or name.startswith('__'):
            raise AttributeError(name)
        method = getattr(self.object, name)

        def call(*arguments: Any) -> Any:
            # As a `with` would be, but that no Ctrl-C comes before its end.
            return torch._C._disabled_torch_function_impl(
                method, (), arguments, {})
        setattr(self, name, call)  # asked for once
        return call


def new_optimizer() -> Native:
    """An unopened torch.classes.terrace.Optimizer."""
    load()
    return Native(torch.classes.terrace.Optimizer())


def new_zero_config() -> Native:
    """A torch.classes.terrace.ZeroConfig that is not open."""
    load()
    return Native(torch.classes.terrace.ZeroConfig())


def new_offload() -> Native:
    """A torch.classes.terrace.Offload that is not open."""
    load()
    return Native(torch.classes.terrace.Offload())


def new_exchange() -> Native:
    """A torch.classes.terrace.Exchange, of which none has begun."""
    load()
    return Native(torch.classes.terrace.Exchange())


def storage_if_offloaded(tensor: torch.Tensor) -> int:
    """What tells its storage from others; 0: it is not offloaded."""
    return _any_offload().storage(tensor)


def give_address(tensor: torch.Tensor) -> None:
    """Somebody has the address of a tensor that is not offloaded, and may keep
    it: an operation that writes the tensor does not have it offloaded."""
    _any_offload().give_address(tensor)


@functools.cache
def _any_offload():
    """To ask of tensors."""
    return new_offload()


def is_offloaded(tensor: torch.Tensor) -> bool:
    """Its bytes are in memory while an operation uses it, and need not be
    otherwise."""
    return storage_if_offloaded(tensor) != 0


def uses_of(tensor: torch.Tensor) -> tuple[int, int]:
    """How many tensors have its storage, also those that Python does not know,
    and one more where Python has an object of the storage itself; how many have
    the tensor, this call's too."""
    return _any_offload().uses(tensor)


def exchange_memory(name: str, tensor: torch.Tensor, memory: torch.Tensor
                    ) -> None:
    """All that have the tensor's storage have the memory of the other one from
    then on, which has theirs. Waits for updates.

    Raises, with its name, ValueError: they have not the same size, or one is
    offloaded or is no tensor in memory of this process alone; RuntimeError: it
    is in use."""
    check(_any_offload().exchange_memory(name, tensor, memory))


def await_updates(tensor: torch.Tensor) -> None:
    """Until no update that goes on after a step reads or writes it.
    RuntimeError: one that writes it failed."""
    check(_await_updates()(tensor))


def await_all_updates() -> None:
    """Until no update of any step goes on, however they ended. The caller has
    a step that may, and so the library is loaded."""
    check(torch.classes.terrace.Optimizer.await_all_updates())


@functools.cache
def _await_updates() -> Callable[[torch.Tensor], Outcome]:
    load()
    return torch.classes.terrace.Optimizer.await_updates


def weights() -> Any:
    """torch.classes.terrace.Weights, whose methods are of no object."""
    load()
    return torch.classes.terrace.Weights


def new_mapped_file() -> Native:
    """A torch.classes.terrace.MappedFile that is not open."""
    load()
    return Native(torch.classes.terrace.MappedFile())


def version() -> str:
    load()
    return torch.ops.terrace.version()


def parse_tier(text: str) -> tuple[str, str, int]:
    """Kind, place and budget in bytes (0: all that there is) of a tier."""
    load()
    kind, place, budget, error = torch.ops.terrace.parse_tier(text)
    if error:
        raise ValueError(f'terrace: {error}')
    return kind, place, budget


def instruction_set() -> str:
    """'AVX-512', 'AVX2', 'NEON' or 'scalar': what the kernels use here."""
    load()
    return torch.ops.terrace.instruction_set()
