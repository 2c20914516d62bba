"""Whatever ends a forward, a `with` or a close() leaves nothing of Terrace's
behind: no hook, no patch, no stance."""

import asyncio
import copy
import gc
import io
import os
import signal
import threading

import pytest
import torch

import terrace
from offloaded import WIDTH, is_cold, mlp
from terrace._base import raw_readers
from terrace._offload import dispatched
from terrace._offload.activations import Activations
from terrace._offload.life import Life
from terrace._offload.managed import Managed
from terrace._offload.steps import Steps
from terrace._state.store import StateStore
from test_offload_activations import offload
from test_offload_close import below, run

ENDS = [KeyError, KeyboardInterrupt, SystemExit, GeneratorExit,
        asyncio.CancelledError]


class Ended(torch.nn.Module):
    """Its forward ends by what it is told."""

    def __init__(self, end=None, parts=None):
        super().__init__()
        self.parts = mlp(2) if parts is None else parts
        self.end = end

    def forward(self, inputs):
        hidden = self.parts(inputs)
        if self.end is not None:
            raise self.end
        return hidden


def check_no_hooks_are_left():
    """PyTorch finds what is written in place before backward."""
    ones = torch.ones(256, WIDTH, requires_grad=True)
    doubled = ones * 2
    squares = doubled * doubled
    doubled.add_(1)
    with pytest.raises(RuntimeError, match='modified by an inplace'):
        squares.sum().backward()


def inputs():
    return torch.randn(256, WIDTH)


@pytest.mark.parametrize('end', ENDS[1:])
def test_a_forward_that_is_interrupted(tmp_path, end):
    model = Ended(end)
    with offload(model, tmp_path) as under:
        for _ in range(2):
            with pytest.raises(end):
                model(inputs())
            check_no_hooks_are_left()
        model.end = None
        before = under.stats()['activation_tensors']
        model(inputs()).sum().backward()
        assert under.stats()['activation_tensors'] == before + 2
    check_no_hooks_are_left()


@pytest.mark.parametrize('end', ENDS[1:])
def test_models_in_one_another(tmp_path, end):
    """The outer one goes on, to what it would be without an interruption."""
    class Outer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.inner = mlp(2), Ended(end)

        def forward(self, hidden):
            hidden = self.first(hidden)
            try:
                return self.inner(hidden)
            except end:
                return hidden.exp()

    model = Outer()
    with offload(model, tmp_path) as outer, offload(model.inner, tmp_path):
        result = model(inputs())
        check_no_hooks_are_left()
        assert outer.stats()['activation_tensors'] >= 3
        result.sum().backward()


def test_ctrl_c_in_the_midst_of_forward(tmp_path):
    class Signalled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = mlp(2)

        def forward(self, hidden):
            hidden = self.parts(hidden)
            os.kill(os.getpid(), signal.SIGINT)
            return self.parts(hidden)

    model = Signalled()
    with offload(model, tmp_path):
        with pytest.raises(KeyboardInterrupt):
            model(inputs())
        check_no_hooks_are_left()


def test_a_hook_of_the_program_that_is_interrupted(tmp_path):
    def end(*_):
        raise KeyboardInterrupt

    model = mlp(2)
    with offload(model, tmp_path):
        for register in (model.register_forward_pre_hook,
                         model.register_forward_hook,
                         model[0].register_forward_hook):
            handle = register(end)
            with pytest.raises(KeyboardInterrupt):
                model(inputs())
            handle.remove()
            check_no_hooks_are_left()


def test_a_thread_that_ends(tmp_path):
    model = Ended(SystemExit)
    found = []

    def work():
        try:
            model(inputs())
        except SystemExit:
            try:
                check_no_hooks_are_left()
            except BaseException as error:
                found.append(error)

    with offload(model, tmp_path):
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not found


def test_a_model_calls_itself_as_before_once_it_is_closed(tmp_path):
    model = Ended()
    before = dict(vars(model))
    with offload(model, tmp_path):
        other = copy.deepcopy(model)
        again = copy.copy(model)
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=False)
    for each in other, again, loaded:
        assert each._compiled_call_impl is None
        each(inputs()).sum().backward()
    assert vars(model).keys() == before.keys()


def test_a_stance_of_the_program_that_ends_later(tmp_path):
    """What was compiled runs eagerly all the same, and nothing of it is left
    afterwards."""
    ended = run(tmp_path, '''
        def backend(graph, inputs):
            calls.append(graph)
            def call(*values):
                ran.append(graph)
                return graph.forward(*values)
            return call
        calls, ran = [], []
        model = mlp()
        inputs = torch.ones(2, 128)
        expected = mlp()(inputs)
        compiled = torch.compile(model, backend=backend)
        compiled(inputs)
        assert len(ran) == len(calls) == 1
        stances = 'default', 'eager_on_recompile', 'force_eager'
        for stance in stances:
            outer = torch.compiler.set_stance(stance)
            offload = terrace.offload(model, memory_budget='200KiB',
                                      nvme_path=sys.argv[1])
            before = len(ran)
            assert torch.equal(compiled(inputs), expected)
            with torch.compiler.set_stance('default'):
                assert torch.equal(compiled(inputs), expected)
            assert torch.equal(compiled(inputs), expected)
            torch.compiler.set_stance('default')
            assert torch.equal(compiled(inputs), expected)
            inner = torch.compiler.set_stance('eager_on_recompile')
            assert len(ran) == before, stance
            offload.close()
            torch._dynamo.eval_frame._set_stance(inner.prev)
            compiled(inputs)
            assert len(ran) == before + 1, stance
        ''')
    assert ended.returncode == 0, ended.stderr


def test_a_with_that_ends_by_an_error_says_what_is_left(tmp_path, caplog):
    model = mlp()
    with caplog.at_level('INFO', 'terrace'):
        with pytest.raises(KeyError, match='mine') as raised:
            with below(model, tmp_path) as under:
                array = model[0].weight.detach().numpy()
                raise KeyError('mine')
    said = caplog.messages[-1]
    assert "'0.weight' is leased" in said and 'close()' in said
    del raised, array
    under.close()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize('end', ENDS)
def test_a_with_that_ends_closes(tmp_path, end):
    model = mlp()
    with pytest.raises(end), below(model, tmp_path):
        raise end
    assert os.listdir(tmp_path) == []
    assert not any(map(is_cold, model.parameters()))


def interrupted(function, is_after):
    """A function that raises once, before or after that is called."""
    calls = []

    def call(*arguments, **named):
        calls.append(arguments)
        if len(calls) > 1:
            return function(*arguments, **named)
        if is_after:
            function(*arguments, **named)
        raise KeyboardInterrupt

    return call


@pytest.mark.parametrize('is_after', [False, True])
@pytest.mark.parametrize('owner, name', [
    (Managed, 'close'), (Steps, 'end'), (Activations, 'end'), (Life, 'end'),
    (raw_readers.keepers, 'end'), (dispatched, 'end'), (StateStore, 'close')])
def test_a_close_that_is_interrupted_is_made_again(tmp_path, monkeypatch,
                                                   owner, name, is_after):
    gc.collect()  # what other tests have left
    compile, before = torch.compile, dict(vars(torch.Tensor))
    monkeypatch.setattr(owner, name, interrupted(getattr(owner, name),
                                                 is_after))
    model = mlp()
    under = terrace.offload(model, memory_budget='8MiB', activations=True,
                            activations_above='16KiB', nvme_path=str(tmp_path))
    optimizer = terrace.AdamW(model.parameters(), offload=under)
    model(torch.ones(2, WIDTH)).sum().backward()
    optimizer.step()
    with pytest.raises(KeyboardInterrupt):
        under.close()
    under.close()
    assert os.listdir(tmp_path) == []
    assert not any(map(is_cold, model.parameters()))
    assert not model._forward_pre_hooks and not model._forward_hooks
    assert not model._state_dict_hooks
    assert torch.compile is compile
    assert dict(vars(torch.Tensor)) == before
    with pytest.raises(RuntimeError, match='closed'):
        optimizer.step()
