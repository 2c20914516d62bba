"""An interrupt may come at any line of Terrace's: no lease is left by it, nor
any value lost, and a close() or another try ends what had begun."""

import contextlib
import dis
import functools
import gc
import io
import os
import sys

import pytest
import torch

import terrace
from offloaded import check_equal_values, values
from terrace._base import library

FOLDER = os.path.dirname(terrace.__file__)


def small():
    torch.manual_seed(7)
    return torch.nn.Sequential(*(torch.nn.Linear(24, 24) for _ in range(6)))


def below(model, directory):
    return terrace.offload(model, memory_budget='2MiB', activations=True,
                           activations_above='1KiB', nvme_path=str(directory))


@functools.cache
def ends_of_with(code):
    """Where the code goes from the last line of a with statement back to its
    first one, to call __exit__(None, None, None). No signal is handled there,
    and what is raised there keeps __exit__ from being called: torch's guards
    would stay for the rest of the process."""
    steps = list(dis.get_instructions(code))
    ends = {i for i in range(len(steps) - 2)
            if all(step.opname == 'LOAD_CONST' and step.argval is None
                   for step in steps[i:i + 3])}
    # What is returned from within makes way first.
    ends |= {i - 1 for i in ends if i and steps[i - 1].opname == 'SWAP'}
    return {steps[i].offset for i in ends}


@contextlib.contextmanager
def interrupt_at(line):
    """That many lines of Terrace's from here; the list is empty until then."""
    left, came = [line], []

    def on_line(frame, event, _):
        is_end = frame.f_lasti in ends_of_with(frame.f_code)
        if event == 'line' and not came and not is_end:
            left[0] -= 1
            if left[0] == 0:
                came.append(f'{frame.f_code.co_filename}:{frame.f_lineno}')
                raise KeyboardInterrupt
        return on_line

    def on_call(frame, event, _):
        is_ours = frame.f_code.co_filename.startswith(FOLDER)
        return on_line if is_ours else None

    sys.settrace(on_call)
    try:
        yield came
    except KeyboardInterrupt:
        assert came
    finally:
        sys.settrace(None)


def lease(model, offload):
    with offload.lease(model[0].weight):
        pass


READS = {
    'numpy': lambda model, _: model[0].weight.detach().numpy(),
    'tolist': lambda model, _: model[0].weight.tolist(),
    'slice': lambda model, _: model[0].weight.untyped_storage()[0:4],
    'dlpack': lambda model, _: torch.from_dlpack(model[0].weight.detach()),
    'entry': lambda model, _: model.state_dict()['0.weight'].numpy(),
    'save': lambda model, _: torch.save(model.state_dict(), io.BytesIO()),
    'lease': lease,
}


@pytest.mark.parametrize('read', READS)
def test_a_reader(tmp_path, read):
    model = small()
    first, came, line = values(model), [True], 0
    with below(model, tmp_path) as offload:
        while came:
            line += 1
            with interrupt_at(line) as came:
                READS[read](model, offload)
        gc.collect()
    # Closing it was not refused: nothing was leased any more.
    check_equal_values(values(model), first)


def in_place():
    return (dict(vars(torch.Tensor)), dict(vars(torch.UntypedStorage)),
            torch.compile, torch.nn.Module.__call__, torch.jit.script)


class Interrupted:
    """What is interrupted as it comes back from a call of that name."""

    def __init__(self, within, name):
        self._within, self._name = within, name

    def __getattr__(self, name):
        function = getattr(self._within, name)
        if name != self._name:
            return function

        def call(*arguments):
            function(*arguments)
            raise KeyboardInterrupt
        return call


def test_a_close(tmp_path, monkeypatch):
    before, model = in_place(), small()
    first = values(model)
    offload = below(model, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(offload._managed, '_native',
                      Interrupted(offload._managed.native, 'close'))
        with pytest.raises(KeyboardInterrupt):
            offload.close()
    assert in_place() == before
    offload.close()
    assert os.listdir(tmp_path) == []
    check_equal_values(values(model), first)


def test_an_offload(tmp_path, monkeypatch):
    """The model is as it was."""
    before, model = in_place(), small()
    first = values(model)
    with monkeypatch.context() as patch:
        patch.setattr(library, 'new_offload', lambda made=library.new_offload:
                      Interrupted(made(), 'manage'))
        with pytest.raises(KeyboardInterrupt):
            below(model, tmp_path)
    assert in_place() == before and os.listdir(tmp_path) == []
    check_equal_values(values(model), first)
    below(model, tmp_path).close()
