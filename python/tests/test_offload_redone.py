"""Reads that fail for a while, in any part of a step of an offloaded model:
what is done again after that has the bits of a run without."""

import contextlib
import dataclasses
import errno
import fcntl
import os

import pytest
import torch

import terrace
import terrace._offload.offload as opened
from offloaded import (WIDTH, check_equal_values, check_same, mlp, mlp_loss,
                       token_loss, transformer, values)
from terrace._offload.arguments import settings_of

MODELS = {
    'deep': (lambda: mlp(24), mlp_loss, lambda model: model[20]),
    # With dropout, ties and what is frozen.
    'transformer': (transformer, token_loss,
                    lambda model: model.layers[1].linear1),
}


@pytest.fixture(autouse=True)
def _engine(monkeypatch):
    """The one whose descriptors are those of the process."""
    monkeypatch.setattr(opened, 'settings_of', lambda *given: (
        dataclasses.replace(settings_of(*given), engine='threads')))


class Unreadable:
    """Files of which reads are refused from begin() on until end(); writes are
    not. Under their descriptors is meanwhile what is open for writing only."""

    def __init__(self, directory):
        self._directory = str(directory)
        self._kept = []

    def begin(self, *_):
        if self._kept:
            return
        files = {}
        for name in os.listdir('/proc/self/fd'):
            with contextlib.suppress(OSError):  # the listing's own
                files[int(name)] = os.readlink(f'/proc/self/fd/{name}')
        for descriptor, file in files.items():
            if file.startswith(self._directory) and file.endswith('/state'):
                self._refuse(descriptor, file)
        assert self._kept

    def _refuse(self, descriptor, file):
        self._kept.append((descriptor, os.dup(descriptor)))
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        other = os.open(file, os.O_WRONLY | (flags & os.O_DIRECT))
        os.dup2(other, descriptor, inheritable=False)
        os.close(other)

    def end(self, is_closed=False):
        for descriptor, kept in self._kept:
            if not is_closed:
                os.dup2(kept, descriptor, inheritable=False)
            os.close(kept)
        self._kept = []


def is_of(error, directory):
    """What a refused read is."""
    assert type(error) is OSError and error.errno == errno.EBADF
    assert error.filename.startswith(str(directory))
    assert str(error).count('terrace: ') == 1
    return True


def stepped(model, optimizer, loss_of, generator):
    optimizer.zero_grad()
    loss = loss_of(model, generator)
    loss.backward()
    optimizer.step()
    return loss.detach().clone()


def trained(model, optimizer, loss_of, disturb=lambda step: None):
    """Losses; a step is disturbed first, and made as if it had not been, by
    the optimizer that the disturbance answers if there is another."""
    generator = torch.Generator().manual_seed(5)
    torch.manual_seed(11)  # of dropout
    losses = []
    for _ in range(6):
        states = generator.get_state(), torch.get_rng_state()
        if len(losses) == 3:
            optimizer = disturb(lambda: stepped(
                model, optimizer, loss_of, generator)) or optimizer
            generator.set_state(states[0])
            torch.set_rng_state(states[1])
        losses.append(stepped(model, optimizer, loss_of, generator))
    return losses


def adamw(model, **options):
    return terrace.AdamW([p for p in model.parameters() if p.requires_grad],
                         lr=1e-2, **options)


def reference(name):
    """Losses and the model in memory."""
    build, loss_of, _ = MODELS[name]
    plain = build()
    return trained(plain, adamw(plain), loss_of), plain


@pytest.mark.parametrize('name', MODELS)
@pytest.mark.parametrize('part', ['forward', 'backward'])
def test_a_pass_that_failed_is_made_again(tmp_path, part, name):
    expected, plain = reference(name)
    build, loss_of, layer_of = MODELS[name]
    model = build()
    offload = terrace.offload(model, memory_budget='1%',
                              nvme_path=str(tmp_path))
    fault = Unreadable(tmp_path)
    optimizer = adamw(model)
    seen = []

    def disturb(step):
        optimizer.flush()
        before = values(model)
        layer = layer_of(model)
        hook = (layer.register_forward_hook(fault.begin) if part == 'forward'
                else layer.weight.register_hook(fault.begin))
        with pytest.raises(RuntimeError, match='^terrace: ') as raised:
            step()
        hook.remove()
        seen.append(str(raised.value))
        assert is_of(offload.error, tmp_path)
        fault.end()
        optimizer.zero_grad()
        offload.retry()
        check_equal_values(values(model), before)

    check_same(trained(model, optimizer, loss_of, disturb), expected)
    assert seen
    offload.close()
    check_equal_values(values(model), values(plain))


def wide_loss(model, generator):
    """An activation of a layer is 128 KiB."""
    return model(torch.randn(256, WIDTH, generator=generator)).square().mean()


@pytest.mark.parametrize('parameters', [False, True])
def test_a_backward_that_lacked_activations_is_made_again(tmp_path,
                                                          parameters):
    plain = mlp(20)
    expected = trained(plain, adamw(plain), wide_loss)
    model = mlp(20)
    offload = terrace.offload(model, memory_budget='2MiB',
                              nvme_path=str(tmp_path), parameters=parameters,
                              activations=True, activations_above='16KiB')
    fault = Unreadable(tmp_path)

    def disturb(step):
        hook = model.register_forward_hook(fault.begin)
        with pytest.raises(RuntimeError, match='^terrace: ') as raised:
            step()
        assert parameters or "'activation " in str(raised.value)
        del raised  # it has what was saved
        hook.remove()
        assert is_of(offload.error, tmp_path)
        fault.end()
        offload.retry()

    check_same(trained(model, adamw(model), wide_loss, disturb), expected)
    assert offload.stats()['failures'] > 0
    offload.close()
    check_equal_values(values(model), values(plain))


@pytest.mark.parametrize('name', MODELS)
def test_updates_that_failed_are_finished(tmp_path, name):
    """Those that go on after step()."""
    expected, plain = reference(name)
    build, loss_of, _ = MODELS[name]
    model = build()
    offload = terrace.offload(model, memory_budget='1%',
                              nvme_path=str(tmp_path))
    optimizer = adamw(model)
    fault = Unreadable(tmp_path)
    generator = torch.Generator().manual_seed(5)
    torch.manual_seed(11)
    losses = []
    for number in range(6):
        optimizer.zero_grad()
        losses.append(loss_of(model, generator))
        losses[-1].backward()
        if number == 3:
            fault.begin()
        optimizer.step()
        if number == 3:
            with pytest.raises(OSError) as raised:
                optimizer.flush()
            assert is_of(raised.value, tmp_path)
            fault.end()
            optimizer.flush()
    check_same(losses, expected)
    assert optimizer.stats()['steps'] == 6
    offload.close()
    check_equal_values(values(model), values(plain))


@pytest.mark.parametrize('name', MODELS)
def test_a_step_that_failed_goes_on_from_a_checkpoint(tmp_path, name):
    """Updates that end within step(): the gradients of the attempt could not
    be read either, so nothing can tell that another has the same."""
    for folder in ('below', 'saved'):
        (tmp_path / folder).mkdir()
    expected, plain = reference(name)
    build, loss_of, _ = MODELS[name]
    model = build()
    offload = terrace.offload(model, memory_budget='1%',
                              nvme_path=str(tmp_path / 'below'))
    optimizer = adamw(model, overlap=False)
    fault = Unreadable(tmp_path / 'below')

    def disturb(step):
        terrace.save(tmp_path / 'saved' / 'run', model, optimizer)
        hook = optimizer.register_step_pre_hook(fault.begin)
        with pytest.raises(OSError) as raised:
            step()
        hook.remove()
        assert is_of(raised.value, tmp_path)
        fault.end()
        with pytest.raises(RuntimeError, match='could not be read again'):
            optimizer.step()
        optimizer.close()
        offload.retry()
        other = adamw(model, overlap=False)
        terrace.load(tmp_path / 'saved' / 'run', model, other)
        return other

    check_same(trained(model, optimizer, loss_of, disturb), expected)
    offload.close()
    check_equal_values(values(model), values(plain))


def test_a_close_that_failed_is_told_and_a_checkpoint_goes_on(tmp_path):
    for name in ('below', 'saved'):
        (tmp_path / name).mkdir()
    expected, plain = reference('deep')

    def below(model):
        offload = terrace.offload(model, memory_budget='1%',
                                  nvme_path=str(tmp_path / 'below'))
        return offload, adamw(model)

    generator = torch.Generator().manual_seed(5)
    model = mlp(24)
    offload, optimizer = below(model)
    losses = [stepped(model, optimizer, mlp_loss, generator)
              for _ in range(3)]
    terrace.save(tmp_path / 'saved' / 'run', model, optimizer)
    at = values(model)
    fault = Unreadable(tmp_path / 'below')
    fault.begin()
    with pytest.raises(OSError) as raised:
        offload.close()
    fault.end(is_closed=True)
    assert is_of(raised.value, tmp_path)
    assert os.listdir(tmp_path / 'below') == []
    lost = 0
    for name, parameter in model.named_parameters():
        try:
            assert torch.equal(parameter, at[name])
        except RuntimeError as error:
            assert str(error).startswith(f"terrace: '{name}'")
            lost += 1
    assert lost > 0
    model = mlp(24, seed=1)
    offload, optimizer = below(model)
    terrace.load(tmp_path / 'saved' / 'run', model, optimizer)
    losses += [stepped(model, optimizer, mlp_loss, generator)
               for _ in range(3)]
    check_same(losses, expected)
    offload.close()
    check_equal_values(values(model), values(plain))
