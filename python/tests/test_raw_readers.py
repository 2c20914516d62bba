"""Whatever Python has to read or write a tensor's memory without an operation
of torch does to offloaded parameters, and to those whose update goes on, what
it does to others, or raises one error of Terrace's."""

import contextlib
import copy
import ctypes
import io
import multiprocessing.reduction
import os
import pickle
import re
import tempfile

import numpy
import pytest
import torch
import torch.utils.dlpack

import forks
import terrace
from offloaded import is_cold, values


def doubled(value):
    return 2 * value


def added(left, right):
    return left + right


def mapped(data):
    other = torch.zeros_like(data)
    other.map_(data, lambda _, value: value)
    return other


def mapped_twice(data):
    other = torch.zeros_like(data)
    other.map2_(data, data, lambda _, left, right: left + right)
    return other


def written(write):
    """`write` of it, as a reader."""
    def read(data):
        write(data)
    return read


def set_numpy(data):
    data.numpy()[...] = 3


def halved_through_dlpack(data):
    capsule = torch.utils.dlpack.to_dlpack(data)
    torch.from_dlpack(capsule).mul_(0.5)


def untyped(data):
    return data.untyped_storage()


def typed(data):
    return data.storage()


def set_item(storage, value):
    storage[5] = value


def set_slice(storage, value):
    storage[2:9] = value


def in_a_file(write):
    def read(data):
        with tempfile.TemporaryFile() as file:
            write(untyped(data), file)
            file.seek(0)
            return file.read()
    return read


def from_a_file(data):
    with tempfile.TemporaryFile() as file:
        values = torch.arange(data.numel(), dtype=data.dtype)
        untyped(values)._write_file(file, True, True, 4)
        file.seek(0)
        untyped(data)._set_from_file(file, 0, True, 4)


def saved(value, **how):
    file = io.BytesIO()
    torch.save(value, file, **how)
    file.seek(0)
    return torch.load(file, weights_only=False)


def at_its_address(data):
    return ctypes.string_at(data.data_ptr(), data.nbytes)


def through_a_storage(data):
    other = torch.empty(0).set_(untyped(data), 0, data.shape)
    other.mul_(2)


def sent(data):
    return bytes(multiprocessing.reduction.ForkingPickler.dumps(data))


def kept_slice(data):
    piece = untyped(data)[4:-4]
    for other in list(small().parameters()):  # something else meanwhile
        other.sum()
    return bytes(piece.tolist())


# What each does to the detached tensor of a parameter; its answer is compared.
READERS = {
    # First, as others leave a storage that cannot be resized.
    'storage: resize_ to its size': written(lambda data: untyped(data).resize_(
        data.nbytes)),
    'apply_': written(lambda data: data.apply_(doubled)),
    'map_': written(lambda data: data.map_(torch.ones_like(data), added)),
    'map_ of another': mapped,
    'map2_': written(lambda data: data.map2_(
        torch.ones_like(data), data, lambda left, one, same: left + same)),
    'map2_ of another': mapped_twice,
    'apply_ of a view': written(lambda data: data[..., 1::2].apply_(doubled)),
    'tolist': lambda data: data.tolist(),
    'numpy': lambda data: data.numpy().copy(),
    'numpy is written': set_numpy,
    'asarray': lambda data: numpy.asarray(data).copy(),
    'array': lambda data: numpy.array(data),
    'array of a kind': lambda data: numpy.asarray(data, dtype='f8'),
    'dlpack': lambda data: torch.from_dlpack(data).clone(),
    'dlpack of numpy': lambda data: numpy.from_dlpack(data).copy(),
    'to_dlpack': lambda data: torch.from_dlpack(
        torch.utils.dlpack.to_dlpack(data)).clone(),
    'dlpack is written': halved_through_dlpack,
    'address': at_its_address,
    'repr': repr,
    'format': lambda data: f'{data.flatten()[0]:.3f}',
    'pickle': lambda data: pickle.loads(pickle.dumps(data)),
    'save': saved,
    'save as of old': lambda data: saved(
        data, _use_new_zipfile_serialization=False),
    'save of a storage': lambda data: saved(typed(data)),
    'save of an untyped storage': lambda data: saved(untyped(data)),
    'copy': lambda data: copy.copy(data).clone(),
    'deepcopy': lambda data: copy.deepcopy(data),
    'share_memory_': lambda data: data.share_memory_().clone(),
    'sent to a process': lambda data: sent(data) and None,
    'subclass': lambda data: torch.Tensor._make_subclass(
        torch.nn.Parameter, data).tolist(),
    'set_': through_a_storage,
    'storage: byteswap': written(lambda data: untyped(data).byteswap(
        data.dtype)),
    'storage: fill_': written(lambda data: untyped(data).fill_(7)),
    'storage: clone': lambda data: untyped(data).clone(),
    'storage: copy_': written(lambda data: untyped(data).copy_(
        untyped(torch.full_like(data, 5)))),
    'storage: copy_ to another': lambda data: untyped(
        torch.empty_like(data)).copy_(untyped(data)),
    'storage: item': lambda data: untyped(data)[7],
    'storage: slice': lambda data: untyped(data)[3:11].tolist(),
    'storage: a slice is kept': kept_slice,
    'storage: a slice is written': written(lambda data: untyped(data)[
        8:24].fill_(1)),
    'storage: set item': written(lambda data: set_item(untyped(data), 9)),
    'storage: set slice': written(lambda data: set_slice(untyped(data), 9)),
    'storage: tolist': lambda data: untyped(data).tolist(),
    'storage: iteration': lambda data: list(untyped(data)),
    'storage: bytes': lambda data: bytes(untyped(data)),
    'storage: repr': lambda data: repr(untyped(data)).splitlines()[:40],
    'storage: _write_file': in_a_file(
        lambda storage, file: storage._write_file(file, True, True, 4)),
    'storage: _write_file as of a stream': in_a_file(
        lambda storage, file: storage._write_file(file, False, False, 1)),
    'storage: _set_from_file': written(from_a_file),
    'storage: double': lambda data: untyped(data).double().tolist(),
    'storage: byte': lambda data: untyped(data).byte().tolist(),
    'storage: share_memory_': lambda data: untyped(
        data).share_memory_() and 0,
    'storage: shared by name': lambda data: untyped(
        data)._share_filename_cpu_() and 0,
    'storage: pickle': lambda data: pickle.loads(pickle.dumps(untyped(data))),
    'storage: deepcopy': lambda data: copy.deepcopy(untyped(data)),
    'storage: copy': lambda data: copy.copy(untyped(data)),
    'storage: address': lambda data: ctypes.string_at(
        untyped(data).data_ptr(), data.nbytes),
    'typed storage: item': lambda data: typed(data)[3],
    'typed storage: set item': written(lambda data: set_item(typed(data), 2.)),
    'typed storage: fill_': written(lambda data: typed(data).fill_(2.)),
    'typed storage: tolist': lambda data: typed(data).tolist(),
    'typed storage: clone': lambda data: typed(data).clone().tolist(),
    'typed storage: copy_': written(lambda data: typed(data).copy_(
        typed(torch.full_like(data, 5)))),
    'typed storage: half': lambda data: typed(data).half().tolist(),
    'typed storage: pickle': lambda data: pickle.loads(pickle.dumps(
        typed(data))).tolist(),
    'typed storage: shared': lambda data: typed(data).share_memory_() and 0,
    'typed storage: _write_file': lambda data: in_a_file(
        lambda storage, file: torch.TypedStorage(
            wrap_storage=storage, dtype=data.dtype, _internal=True
        )._write_file(file, True, True, 4))(data),
}


def comparable(answer):
    if isinstance(answer, (torch.UntypedStorage, torch.TypedStorage,
                           torch.Tensor, numpy.ndarray)):
        return answer.tolist()
    return answer


def small():
    """A layer is 2 KiB."""
    torch.manual_seed(7)
    return torch.nn.Sequential(*(torch.nn.Linear(24, 24) for _ in range(8)))


class World:
    """A model, and the same one as PyTorch has it."""

    def __init__(self, model, ready=lambda *models: None,
                 begin=lambda parameter: None):
        """`ready`: called with both before each reader, `begin` with each
        parameter."""
        self._model, self._ready, self._begin = model, ready, begin
        self._first = values(model)

    def cases(self):
        return {name: lambda read=read: self._check(read)
                for name, read in READERS.items()}

    def _check(self, read):
        plain = small()
        self._model.load_state_dict(self._first)
        self._ready(plain, self._model)
        refused = ''
        for mine, theirs in zip(self._model.parameters(), plain.parameters()):
            self._begin(mine)
            try:
                expected = comparable(read(theirs.data))
            except Exception as error:
                expected = type(error)
            try:
                got = comparable(read(mine.data))
            except Exception as error:
                got = type(error)
                if 'terrace:' in str(error):
                    refused = str(error)
                    continue
            assert got == expected, 'it reads something else'
        if refused:  # for some: what is in memory may be read
            return f'refused: {refused}'
        for mine, theirs in zip(self._model.parameters(), plain.parameters()):
            assert torch.equal(mine.data.view(torch.int32),
                               theirs.data.view(torch.int32)), 'other values'
        return 'right'


def below(model, directory):
    return terrace.offload(model, memory_budget='30%',
                           nvme_path=str(directory))


def use_others(model, parameter):
    for _ in range(3):
        for other in model.parameters():
            if other is not parameter:
                other.sum()


def away(directory):
    """Each parameter is read as it is below."""
    def begin(parameter):
        use_others(model, parameter)
        assert is_cold(parameter) or parameter.dim() == 1

    model = small()
    below(model, directory)
    return World(model, begin=begin).cases()


def in_memory(directory):
    """Each is read in memory, and leaves it afterwards."""
    def begin(parameter):
        use_others(model, parameter)
        parameter.sum()

    model = small()
    below(model, directory)
    return World(model, begin=begin).cases()


def updated_later(directory, **options):
    """Each parameter is read while its update goes on, or is about to."""
    def step(plain, model):
        generator = torch.Generator().manual_seed(3)
        data = torch.randn(5, 24, generator=generator)
        optimizer.load_state_dict(first)
        with contextlib.closing(terrace.AdamW(
                plain.parameters(), lr=1e-2, overlap=False)) as reference:
            for network, made in ((plain, reference), (model, optimizer)):
                network(data).square().mean().backward()
                made.step()
                made.zero_grad()

    model = small()
    if not options:
        options['offload'] = below(model, directory)
    optimizer = terrace.AdamW(model.parameters(), lr=1e-2, **options)
    first = optimizer.state_dict()
    return World(model, step).cases()


def updated_later_in_memory(directory):
    return updated_later(directory, overlap=True, memory_budget='256KiB',
                         nvme_path=str(directory))


_kept = []  # what a parent has offloaded


def in_a_child(make):
    """Of a process that has a model offloaded itself, and ends as its child
    does."""
    def forked(directory):
        of_parent = directory / 'parent'
        of_parent.mkdir()
        model = small()
        _kept.append((model, below(model, of_parent)))
        model(torch.ones(2, 24))
        child = os.fork()
        if child == 0:
            return make(directory, model)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code < 0:
            os.kill(os.getpid(), -code)
        os._exit(code)
    return forked


@in_a_child
def away_in_a_child(directory, _):
    return away(directory)


@in_a_child
def of_its_parent(_, model):
    def check(read):
        for parameter in model.parameters():
            with pytest.raises(RuntimeError, match='terrace: '):
                read(parameter.data)
        return 'refused'

    return {name: lambda read=read: check(read)
            for name, read in READERS.items()}


WORLDS = {'away': away, 'in memory': in_memory, 'updated later': updated_later,
          'updated later in memory': updated_later_in_memory,
          'away in a child': away_in_a_child, 'of its parent': of_its_parent}


# The rest is read, unless none of it is here.
REFUSALS = (r'refused: terrace: (\w+\(\) gives a storage other memory|'
            'a tensor of an offloaded model is not in memory)')


@pytest.mark.parametrize('world', WORLDS)
def test_readers_do_what_they_do_to_others(tmp_path, world):
    answers = forks.answers_of(__file__, 'WORLDS', world, tmp_path)
    assert answers.keys() == READERS.keys()
    right = 'refused' if world == 'of its parent' else f'right|{REFUSALS}'
    wrong = {reader: answer for reader, answer in answers.items()
             if not re.match(right, answer)}
    assert not wrong
