"""What Terrace puts in the place of torch's functions for a while, and that
they are the same objects as before when nothing uses that any more."""

import gc
import os

import numpy
import pytest
import torch
import torch._dynamo.callback

import terrace
from offloaded import WIDTH, mlp
from terrace._base import raw_readers
from terrace._base.replaced import Entry, Replaced
from terrace._base.watched import tensor as watched_tensor
from terrace._offload import activations, calls, dispatched
from terrace._offload.readers import leasing


class Base:
    def inherited(self):
        return 'inherited'


class Owner(Base):
    def own(self):
        return 'own'


def louder(original):
    return lambda self: original(self).upper()


def both():
    yield Entry(Owner, 'own', louder)
    yield Entry(Owner, 'inherited', louder)
    yield Entry(Owner, 'own', louder)
    yield Entry(Owner, 'of another torch', louder)


def test_what_was_there_comes_back_with_the_last_user():
    before = dict(vars(Owner))
    replaced = Replaced(both)
    replaced.begin('one')
    replaced.begin('other')
    replaced.begin('one')
    assert (Owner().own(), Owner().inherited()) == ('OWN', 'INHERITED')
    replaced.end('one')
    replaced.end('one')
    replaced.end('none')
    assert replaced.users == ('other',)
    assert (Owner().own(), Owner().inherited()) == ('OWN', 'INHERITED')
    replaced.end('other')
    assert dict(vars(Owner)) == before and not replaced.users
    replaced.end('other')
    assert dict(vars(Owner)) == before


def test_a_begin_that_failed_leaves_nothing_and_may_be_made_again():
    is_failing = True

    def table():
        yield Entry(Owner, 'own', louder)
        if is_failing:
            raise KeyboardInterrupt

    before = dict(vars(Owner))
    replaced = Replaced(table)
    with pytest.raises(KeyboardInterrupt):
        replaced.begin('one')
    assert dict(vars(Owner)) == before and not replaced.users
    is_failing = False
    replaced.begin('one')
    assert Owner().own() == 'OWN'
    replaced.end('one')
    assert dict(vars(Owner)) == before


def test_a_watch_that_begins_as_the_last_one_ends_is_kept():
    class Watched:
        """Something that weak references may be of."""

    class Ending(dict):
        def setdefault(self, *arguments):
            last.clear()  # As the collector does at any time.
            return super().setdefault(*arguments)

    watches = watched_tensor._All()
    last, other = [Watched()], Watched()
    watches.add(1, last[0])
    watches._watched = Ending(watches._watched)
    watches.add(2, other)
    assert list(watches._watched) == [2]
    assert watches._swaps.users == (watches,)
    del other
    assert not watches._watched and not watches._swaps.users


def test_what_others_have_put_since_stays():
    """And what they put back is taken away by the next that begins or ends."""
    before = dict(vars(Owner))
    replaced = Replaced(both)
    replaced.begin('one')
    within = Owner.own
    Owner.own = lambda self: within(self) + '!'
    replaced.end('one')
    assert Owner().own() == 'OWN!'
    replaced.begin('one')
    assert Owner().own() == 'OWN!'  # upper() of that
    replaced.end('one')
    assert Owner().own() == 'OWN!'
    Owner.own = within
    replaced.end('one')
    assert dict(vars(Owner)) == before


def test_a_reader_that_others_have_put_while_offloaded_stays(
        tmp_path, monkeypatch):
    # Taken back at the end, whatever stands there by then.
    monkeypatch.setattr(torch.Tensor, 'numpy', torch.Tensor.numpy)
    others = ('data_ptr', '__reduce_ex__')
    before = [vars(torch.Tensor).get(name) for name in others]
    offload = terrace.offload(mlp(), memory_budget='400KiB',
                              nvme_path=tmp_path)
    within, seen = torch.Tensor.numpy, []

    def numpy_of(self, **named):
        seen.append(self)
        return within(self, **named)

    torch.Tensor.numpy = numpy_of
    offload.close()
    assert torch.Tensor.numpy is numpy_of
    ones = torch.ones(3)
    assert numpy.array_equal(ones.numpy(), [1, 1, 1]) and seen == [ones]
    assert [vars(torch.Tensor).get(name) for name in others] == before


def test_readers_of_a_closed_model_note_nothing(tmp_path, monkeypatch):
    """An optimizer that joined watches readers too, over the model's."""
    monkeypatch.setattr(torch.Tensor, 'numpy', torch.Tensor.numpy)
    model, ones = mlp(), torch.ones(3)
    offload = terrace.offload(model, memory_budget='400KiB',
                              nvme_path=tmp_path)
    terrace.AdamW(model.parameters())
    array = ones.numpy()
    assert leasing.is_exported(ones.data_ptr())
    del array
    offload.close()
    array = ones.numpy()
    assert not leasing.is_exported(ones.data_ptr())
    assert numpy.array_equal(array, [1, 1, 1])


PATCHERS = {
    'readers': raw_readers.keepers, 'swaps': watched_tensor._all._swaps,
    'dispatched': dispatched._models, 'calls': calls._through,
    'aside': activations._aside}


def functions():
    """Of torch, all that may be others for a while, and who hears of what is
    compiled."""
    found = {}
    for patcher in PATCHERS.values():
        for owner, name, _ in patcher._table():
            found[owner, name] = vars(owner).get(name)
    heard = torch._dynamo.callback.callback_handler.start_callbacks
    return {key: id(value) for key, value in found.items()}, list(heard)


class Used:
    """An Offload of one model, and late updates of another one."""

    def __init__(self, path):
        self.model, self.late = mlp(), mlp(2)
        path.mkdir()
        self.offload = terrace.offload(
            self.model, memory_budget='400KiB', activations=True,
            activations_above='16KiB', nvme_path=str(path))
        self.joined = terrace.AdamW(self.model.parameters())
        self.optimizer = terrace.AdamW(self.late.parameters(), overlap=True)

    def step(self):
        for model, optimizer in ((self.model, self.joined),
                                 (self.late, self.optimizer)):
            model(torch.ones(2, WIDTH)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    def close(self, what):
        {'model': self.offload, 'optimizer': self.optimizer}[what].close()


@pytest.fixture
def before():
    gc.collect()  # what other tests have left
    return functions()


def is_patched():
    return torch.Tensor.numpy is not torch._C.TensorBase.numpy


@pytest.mark.parametrize('first, second', [('model', 'optimizer'),
                                           ('optimizer', 'model')])
def test_all_is_as_before(tmp_path, before, first, second):
    assert not is_patched()
    used = Used(tmp_path / 'nvme')
    used.step()
    assert is_patched() and functions() != before
    used.close(first)
    used.close(first)
    assert is_patched()
    used.close(second)
    used.close(second)
    used.close(first)
    assert functions() == before and not is_patched()
    assert not any(patcher.users for patcher in PATCHERS.values())


def test_of_several_the_last_one(tmp_path, before):
    several = [Used(tmp_path / str(number)) for number in range(3)]
    for used in (several[1], several[0], several[2]):
        assert is_patched()
        used.step()
        for what in ('optimizer', 'model', 'model', 'optimizer'):
            used.close(what)
    assert functions() == before


def test_what_is_dropped_and_not_closed(tmp_path, before):
    used = Used(tmp_path / 'nvme')
    used.step()
    del used
    gc.collect()
    assert functions() == before


@pytest.mark.parametrize('is_put_back', ['before', 'after'])
def test_a_program_replaces_some_in_between(tmp_path, before, is_put_back):
    used = Used(tmp_path / 'nvme')
    within, seen = torch.Tensor.numpy, []

    def numpy_of(self):
        seen.append(self)
        return within(self)

    torch.Tensor.numpy = numpy_of
    if is_put_back == 'before':
        torch.Tensor.numpy = within
    used.close('model')
    used.close('optimizer')
    if is_put_back == 'after':
        ones = torch.ones(3)
        assert ones.numpy().tolist() == [1, 1, 1] and seen == [ones]
        torch.Tensor.numpy = within
        assert ones.numpy().tolist() == [1, 1, 1]
        again = Used(tmp_path / 'again')
        again.close('optimizer')
        again.close('model')
    assert functions() == before


def in_a_child(check):
    child = os.fork()
    if child == 0:
        code = 1
        torch.set_num_threads(1)  # it has none of its parent's
        try:
            check()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


def test_a_fork(tmp_path, before):
    """A child has its parent's offloaded tensors, and none of its updates."""
    def of_late_updates():
        assert functions() == before
        optimizer.close()
        assert functions() == before

    def of_a_model():
        there = functions()
        assert is_patched()
        mine = Used(tmp_path / 'child')
        assert len(mine.model[0].weight.detach().tolist()) == WIDTH
        mine.close('model')
        mine.close('optimizer')
        assert functions() == there

    late = mlp(2)
    optimizer = terrace.AdamW(late.parameters(), overlap=True)
    assert is_patched()
    in_a_child(of_late_updates)
    used = Used(tmp_path / 'nvme')
    in_a_child(of_a_model)
    assert is_patched()
    used.step()
    used.close('optimizer')
    used.close('model')
    assert is_patched()
    optimizer.close()
    assert functions() == before
