"""What Terrace puts in the place of torch's functions for a while."""

import numpy
import torch

import terrace
from offloaded import mlp
from terrace._base.replaced import Replaced
from terrace._offload.readers import leasing


class Base:
    def inherited(self):
        return 'inherited'


class Owner(Base):
    def own(self):
        return 'own'


def louder(original):
    return lambda self: original(self).upper()


def test_what_was_there_comes_back():
    before = dict(vars(Owner))
    replaced = Replaced()
    replaced.put(Owner, 'own', louder)
    replaced.put(Owner, 'inherited', louder)
    replaced.put(Owner, 'own', louder)
    assert (Owner().own(), Owner().inherited()) == ('OWN', 'INHERITED')
    replaced.restore()
    assert dict(vars(Owner)) == before
    replaced.restore()
    assert dict(vars(Owner)) == before


def test_what_others_have_put_since_stays(monkeypatch):
    replaced = Replaced()
    replaced.put(Owner, 'inherited', louder)
    within = Owner.inherited
    monkeypatch.setattr(Owner, 'inherited', lambda self: within(self) + '!')
    replaced.restore()
    assert Owner().inherited() == 'INHERITED!'


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
