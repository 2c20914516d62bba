"""Code that torch runs past its dispatcher takes tensors that nothing brings,
and nobody learns which of them it writes. While a model is offloaded, all goes
through the dispatcher:

- compiled code runs eagerly.
- TorchScript of an offloaded model is refused.
- operators whose schema answers an object, which may keep their tensors, take
  copies.
- operators that torch.library.custom_op has made, which torch calls past the
  dispatcher from 2.15 on, are called through it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket

from terrace._base.library import is_offloaded
from terrace._base.message import say
from terrace._base.replaced import Entry, Replaced
from terrace._state.stepping.late_readers import is_compiled

_told = False


def begin(model: object) -> None:
    """All goes through the dispatcher until end() of this model."""
    _models.begin(model)


def end(model: object) -> None:
    """A second call does nothing."""
    _models.end(model)


def _table() -> Iterator[Entry]:
    if is_compiled():
        _tell_once()
    yield Entry(torch, 'compile', _telling)
    if hasattr(OpOverload, '_enable_pyobj_dispatch'):
        yield Entry(OpOverload, '__call__', lambda _: _dispatch)
    for owner, name in _scripts():
        yield Entry(owner, name, _refused_offloaded)
    for owner in (OpOverload, OpOverloadPacket):
        yield Entry(owner, '__call__', _taking_copies)
    # A stance would not do: the program has stances of its own, which end in
    # any order.
    from torch._dynamo import eval_frame  # This import takes seconds.
    yield Entry(eval_frame, '_callback_from_stance', _eagerly)


_models = Replaced(_table)


def _eagerly(callback_from_stance: Callable[..., Any]) -> Callable[..., Any]:
    """torch asks this, as it enters or leaves compiled code, how it compiles
    and whether."""
    @functools.wraps(callback_from_stance)
    def callback(compiling: Any) -> Any:
        return None if _models.users else callback_from_stance(compiling)
    return callback


def _taking_copies(call: Callable[..., Any]) -> Callable[..., Any]:
    """The operator is given copies of tensors that it may keep in an object
    that it answers."""
    @functools.wraps(call)
    def __call__(operator: Any, /, *arguments: Any, **named: Any) -> Any:
        if _models.users and _answers_objects(operator):
            arguments = tuple(map(_copied, arguments))
            named = {name: _copied(value) for name, value in named.items()}
        return call(operator, *arguments, **named)
    return __call__


@functools.cache
def _answers_objects(operator: OpOverload | OpOverloadPacket) -> bool:
    """Whether the schema of one of the operator's overloads answers an object.
    A Work and a stream do not count: nets of their own know the tensors that
    these keep."""
    namespace, name, *_ = str(operator).split('.')
    return any(_OBJECT.search(str(each.type)) for schema in
               torch._C._jit_get_schemas_for_operator(f'{namespace}::{name}')
               for each in schema.returns)


_OBJECT = re.compile(r'__torch__\.torch\.classes\.(?!c10d\.|cuda\.)')


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and is_offloaded(value):
        return value.detach().clone()
    if isinstance(value, (list, tuple)):
        return [*map(_copied, value)]
    return value


def _scripts() -> Iterator[tuple[Any, str]]:
    """The functions that make TorchScript of modules, or write it."""
    for name in ('script', 'trace', 'trace_module', 'freeze',
                 'optimize_for_inference', 'save'):
        yield torch.jit, name
    for name in ('save', 'save_to_buffer'):
        yield torch.jit.RecursiveScriptModule, name


_REFUSAL = ('terrace: torch.jit: %s() of a model whose parameters are '
            'offloaded: TorchScript reads them where nothing brings them; do '
            'it before offload() or after close()')


def check_not_traced() -> None:
    """The forward of an offloaded model calls this, whatever torch.jit.trace
    was given that calls the model."""
    if torch._C._get_tracing_state() is not None:
        raise RuntimeError(_REFUSAL % 'trace')


def _refused_offloaded(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def refused(*arguments: Any, **named: Any) -> Any:
        for value in (*arguments, *named.values()):
            if (_models.users and isinstance(value, torch.nn.Module)
                    and any(map(is_offloaded, value.parameters()))):
                raise RuntimeError(_REFUSAL % function.__name__)
        return function(*arguments, **named)
    return refused


def _telling(compile: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(compile)
    def tells(*arguments: Any, **named: Any) -> Any:
        if _models.users:
            _tell_once()
        return compile(*arguments, **named)
    return tells


def _dispatch(operator: OpOverload, /, *arguments: Any, **named: Any) -> Any:
    return operator._cpp_dispatch_handle(*arguments, **named)


def _tell_once() -> None:
    global _told
    if not _told:
        _told = True
        say('while a model is offloaded, what torch.compile has made, or '
            'makes, runs eagerly: nothing would bring the tensors that it '
            'reads')
