"""A group that cannot be added leaves no trace."""

import os
import resource
import signal

import pytest
import torch

import terrace
from conftest import (batches, compiled_of, largest_difference, model,
                      train)
from terrace._base import library
from terrace._state import transfer

_LARGE = 400_000  # 3.2 MB of state


def streamed(folder):
    folder.mkdir()
    network = model()
    return network, terrace.AdamW(network.parameters(), memory_budget='256KiB',
                                  nvme_path=str(folder))


def large():
    return torch.nn.Parameter(torch.linspace(-1, 1, _LARGE))


def files_bytes(folder):
    return max(os.stat(os.path.join(where, name)).st_size
               for where, _, names in os.walk(folder) for name in names)


class _NoLargerFiles:
    """As on a full disk: no file may grow beyond so many bytes."""

    def __init__(self, most):
        self._most = most

    def __enter__(self):
        self._limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE,
                           (self._most, self._limits[1]))

    def __exit__(self, *_):
        resource.setrlimit(resource.RLIMIT_FSIZE, self._limits)


def test_a_group_that_has_no_room_gives_back_what_it_took(tmp_path):
    network, optimizer = streamed(tmp_path / 'one')
    other, undisturbed = streamed(tmp_path / 'other')
    data = batches(6)
    train(network, optimizer, data[:2])
    train(other, undisturbed, data[:2])
    before = optimizer.stats()['disk_bytes']
    # Room for some of its chunks, not for all.
    most = files_bytes(tmp_path / 'one') + 1_000_000
    for _ in range(3):
        with _NoLargerFiles(most):
            with pytest.raises(OSError) as caught:
                optimizer.add_param_group({'params': [large()]})
        assert caught.value.errno
        assert len(optimizer.param_groups) == 1
        assert optimizer.stats()['disk_bytes'] == before
    train(network, optimizer, data[2:4])
    train(other, undisturbed, data[2:4])

    added, theirs = large(), large()
    optimizer.add_param_group({'params': [added], 'lr': 0.01})
    undisturbed.add_param_group({'params': [theirs], 'lr': 0.01})
    assert (optimizer.stats()['disk_bytes'] ==
            undisturbed.stats()['disk_bytes'] > before)
    for weight in (added, theirs):
        weight.grad = torch.ones(_LARGE)
    train_without_clearing(network, optimizer, data[4:])
    train_without_clearing(other, undisturbed, data[4:])
    assert largest_difference(network, other) == 0
    assert torch.equal(added, theirs)
    assert optimizer.state[added]['step'] == 2


class _Native:
    """A compiled optimizer, with something happening after a call."""

    def __init__(self, native, name, then):
        self._native, self._name, self._then = native, name, then

    def __getattr__(self, name):
        method = getattr(self._native, name)
        if name != self._name:
            return method

        def call(*arguments):
            result = method(*arguments)
            self._name = None  # once
            self._then()
            return result
        return call


def test_ctrl_c_comes_after_the_group(tmp_path):
    network, optimizer = streamed(tmp_path / 'one')
    other, undisturbed = streamed(tmp_path / 'other')
    data = batches(4)
    train(network, optimizer, data[:2])
    train(other, undisturbed, data[:2])
    compiled = compiled_of(optimizer)
    compiled._native = _Native(compiled._native, 'add', lambda: os.kill(
        os.getpid(), signal.SIGINT))
    added, theirs = (torch.nn.Parameter(torch.ones(5)) for _ in range(2))
    with pytest.raises(KeyboardInterrupt):
        optimizer.add_param_group({'params': [added]})
    undisturbed.add_param_group({'params': [theirs]})
    assert len(optimizer.param_groups) == 2
    added.grad, theirs.grad = torch.ones(5), torch.ones(5)
    train_without_clearing(network, optimizer, data[2:])
    train_without_clearing(other, undisturbed, data[2:])
    assert largest_difference(network, other) == 0
    assert torch.equal(added, theirs)


def test_state_that_cannot_be_moved_stays(tmp_path, monkeypatch):
    network, other = model(), model()
    # All in memory, until there is more than that.
    optimizer = terrace.AdamW(network.parameters(), memory_budget='1MiB',
                              nvme_path=str(tmp_path))
    undisturbed = terrace.AdamW(other.parameters())
    data = batches(4)
    train(network, optimizer, data[:2])
    train(other, undisturbed, data[:2])

    def fail():
        raise MemoryError('no room')

    make = library.new_optimizer
    monkeypatch.setattr(library, 'new_optimizer',
                        lambda: _Native(make(), 'write', fail))
    with pytest.raises(MemoryError, match='no room'):
        optimizer.add_param_group({'params': [large()]})
    assert len(optimizer.param_groups) == 1
    train(network, optimizer, data[2:])
    train(other, undisturbed, data[2:])
    assert largest_difference(network, other) == 0
    assert optimizer.stats()['steps'] == 4


def train_without_clearing(network, optimizer, data):
    """The added weight keeps its gradient."""
    for inputs, targets in data:
        network.zero_grad()
        torch.nn.functional.mse_loss(network(inputs), targets).backward()
        optimizer.step()


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_state_is_moved_a_range_at_a_time(tmp_path, monkeypatch, dtype):
    """A group for which memory is too small: what was there goes to the path,
    and no array of it is copied whole."""
    def make(**settings):
        network = model(width=40, dtype=dtype)
        return network, terrace.AdamW(network.parameters(), **settings)

    network, optimizer = make(memory_budget='256KiB', nvme_path=str(tmp_path))
    other, undisturbed = make()
    data = batches(4, width=40, dtype=dtype)
    train(network, optimizer, data[:2])
    train(other, undisturbed, data[:2])
    sizes = []

    class Counted:
        def __init__(self, native):
            self._native = native

        def __getattr__(self, name):
            return getattr(self._native, name)

        def write(self, position, offset, *arrays):
            sizes.extend(array.numel() for array in arrays)
            return self._native.write(position, offset, *arrays)

    made = library.new_optimizer
    monkeypatch.setattr(library, 'new_optimizer', lambda: Counted(made()))
    monkeypatch.setattr(transfer, '_RANGE', 1000)
    added, theirs = large(), large()
    assert optimizer.stats()['disk_bytes'] == 0
    optimizer.add_param_group({'params': [added]})
    assert optimizer.stats()['disk_bytes'] > 0
    monkeypatch.setattr(library, 'new_optimizer', made)
    undisturbed.add_param_group({'params': [theirs]})
    kinds = 2 if dtype == torch.float32 else 3
    assert sum(sizes) == kinds * sum(p.numel() for p in network.parameters())
    assert max(sizes) == 1000
    assert len(list(tmp_path.iterdir())) == 1  # what was left is gone
    for weight in (added, theirs):
        weight.grad = torch.ones(_LARGE)
    train_without_clearing(network, optimizer, data[2:])
    train_without_clearing(other, undisturbed, data[2:])
    assert largest_difference(network, other) == 0
    assert torch.equal(added, theirs)
