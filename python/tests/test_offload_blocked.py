"""What an offloaded model says of the seconds that operations waited."""

import gc
import time

import pytest
import torch

import terrace
from offloaded import mlp, mlp_loss, train
from terrace._offload.blocked import longest_by_module
from terrace._state.compiled import Compiled


def adamw(parameters):
    return terrace.AdamW(parameters, lr=1e-2)


def test_the_ten_modules_that_were_waited_for_longest(tmp_path):
    model = mlp(24)
    with terrace.offload(model, memory_budget='1%',
                         nvme_path=str(tmp_path)) as offload:
        train(model, mlp_loss, adamw)
        by_tensor = offload._managed.stats()['blocked_tensors']
        stats = offload.stats()
    told = stats['blocked_modules']
    names = {name for name, _ in model.named_modules()}
    assert len(told) == 10 and told.keys() <= names | {'gradients', 'updates'}
    assert list(told.values()) == sorted(told.values(), reverse=True)
    assert all(seconds > 0 for seconds in told.values())
    for name in names - told.keys():
        mine = sum(by_tensor.get(f'{name}.{kind}', 0.0)
                   for kind in ('weight', 'bias'))
        assert mine <= min(told.values())
    assert sum(told.values()) <= sum(stats['blocked_seconds'].values())


@pytest.mark.parametrize('activations', [False, True])
def test_where_they_are_few_they_are_all(tmp_path, activations):
    """With gradients, of steps that are over too."""
    model = mlp(4)
    with terrace.offload(model, memory_budget='448KiB', activations=activations,
                         activations_above='4KiB',
                         nvme_path=str(tmp_path)) as offload:
        optimizer = adamw(model.parameters())
        for _ in range(4):
            inputs = torch.randn(64, 128)
            for _ in range(2):  # sums of gradients that are below
                model(inputs).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        optimizer.flush()
        stats = offload.stats()
    told = stats['blocked_modules']
    assert {'0', '2', '4', '6'} <= told.keys()
    assert told['gradients'] > 0
    assert ('activations' in told) == activations
    assert sum(told.values()) == pytest.approx(
        sum(stats['blocked_seconds'].values()))


def test_names():
    assert longest_by_module(
        {'weight': 1.0, 'a.b.weight': 0.5, 'a.b.bias': 0.25, 'a.weight': 3.0,
         'activations.saved': 0.125, 'a.weight.grad': 0.25,
         'a.b.bias.grad 4': 0.125}, 10.0, 2.0) == {
             'gradients': 5.125, 'a': 3.0, 'updates': 2.0, '': 1.0, 'a.b': 0.75,
             'activations': 0.125}
    assert longest_by_module({}, 0.0, 0.0) == {}


def train_two(model, generator, overlap=None):
    """The optimizers of its halves, and the seconds that forward, backward and
    steps took."""
    parts = list(model.parameters())
    optimizers = [terrace.AdamW(half, lr=1e-2, overlap=overlap)
                  for half in (parts[::2], parts[1::2])]
    started = time.monotonic()
    for _ in range(4):
        mlp_loss(model, generator).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return optimizers, time.monotonic() - started


def test_updates_that_were_waited_for(tmp_path):
    model, generator = mlp(24), torch.Generator().manual_seed(1)
    with terrace.offload(model, memory_budget='1%',
                         nvme_path=str(tmp_path)) as offload:
        assert offload.stats()['blocked_seconds']['updates'] == 0
        train_two(model, generator, overlap=False)
        stats = offload.stats()
        assert stats['blocked_seconds']['updates'] == 0
        assert 'updates' not in stats['blocked_modules']
        optimizers, took = train_two(model, generator)
        waited = offload.stats()['blocked_seconds']['updates']
        assert 0 < waited < took
        optimizers[0].flush()
        offload.flush()
        told = [each.stats()['updates_waited_seconds'] for each in optimizers]
        stats = offload.stats()
        assert stats['blocked_seconds']['updates'] == pytest.approx(sum(told))
        assert stats['blocked_seconds']['updates'] >= waited
        assert stats['blocked_modules']['updates'] == pytest.approx(sum(told))
        # Of those that are closed, or gone, too.
        optimizers.pop().close()
        del optimizers
        gc.collect()
        assert offload.stats()['blocked_seconds'] == stats['blocked_seconds']
    assert offload.stats()['blocked_seconds']['updates'] == pytest.approx(
        sum(told))


def test_asking_waits_for_no_update(tmp_path, monkeypatch):
    model = mlp(12)
    with terrace.offload(model, memory_budget='1%',
                         nvme_path=str(tmp_path)) as offload:
        optimizer = adamw(model.parameters())
        mlp_loss(model, torch.Generator()).backward()
        optimizer.step()
        with monkeypatch.context() as patch:
            for waiting in ('stats', 'flush', 'settle'):
                patch.setattr(Compiled, waiting, None)
            offload.stats()
