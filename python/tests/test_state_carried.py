"""State that goes to another place is kept until all of it has arrived."""

import contextlib
import copy
import errno
import os
import subprocess

import pytest
import torch

import terrace
from conftest import batches, compiled_of, largest_difference, train
from terrace._base import library
from terrace._optimizer import state_view

_LARGE = 400_000  # 3.2 MB of state, for which 256 KiB of memory are too small
_WIDTH = 190


def large():
    return torch.nn.Parameter(torch.linspace(-1, 1, _LARGE))


@pytest.fixture
def file(odd_path):
    path = odd_path / 'state'
    path.touch()
    return path


@pytest.fixture
def devices(tmp_path):
    """Two block devices of 32 MiB."""
    made = []
    try:
        for name in 'one', 'other':
            image = tmp_path / name
            with open(image, 'wb') as file:
                file.truncate(32 << 20)
            run = subprocess.run(['losetup', '--find', '--show', str(image)],
                                 capture_output=True, text=True)
            if run.returncode:
                pytest.skip(f'no block device here: {run.stderr.strip()}')
            made.append(run.stdout.strip())
        yield made
    finally:
        for path in made:
            subprocess.run(['losetup', '--detach', path], check=True)


def network(dtype):
    """Of few tensors, whose state is more than 256 KiB."""
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(_WIDTH, _WIDTH, bias=False), torch.nn.Tanh(),
        torch.nn.Linear(_WIDTH, 7)).to(dtype)


class Pair:
    """Training with its state at a path, and the same undisturbed."""

    def __init__(self, path, dtype=torch.float32, budget='256KiB'):
        self.dtype = dtype
        self.mine, self.theirs = network(dtype), network(dtype)
        # Without a gradient, and so without state.
        self.extra, self.their_extra = (
            torch.nn.Parameter(torch.ones(30)) for _ in range(2))
        self.optimizer = terrace.AdamW(
            [*self.mine.parameters(), self.extra], memory_budget=budget,
            nvme_path=str(path))
        self.undisturbed = terrace.AdamW(
            [*self.theirs.parameters(), self.their_extra])
        self.train()

    def train(self):
        """They are alike, steps later."""
        data = batches(2, width=_WIDTH, dtype=self.dtype)
        assert (train(self.mine, self.optimizer, data)
                == train(self.theirs, self.undisturbed, data))
        assert largest_difference(self.mine, self.theirs) == 0
        assert torch.equal(self.extra, self.their_extra)

    def has_all_state(self):
        mine = self.optimizer.state_dict()['state']
        theirs = self.undisturbed.state_dict()['state']
        assert mine.keys() == theirs.keys()
        for index, state in theirs.items():
            assert mine[index].keys() == state.keys()
            for key, tensor in state.items():
                assert torch.equal(mine[index][key], tensor), (index, key)
        return True


def cast(optimizer, extra):
    """What was never stepped is of another dtype, and is stepped: it gets
    another place, and with it all others."""
    if extra.dtype == torch.float32:
        extra.data = extra.data.bfloat16()
    extra.grad = torch.ones_like(extra)
    optimizer.step()
    extra.grad = None


@contextlib.contextmanager
def elsewhere(path):
    """What lies there meanwhile is another's."""
    aside = path.with_name('aside')
    path.rename(aside)
    path.write_bytes(b'a diary' * 1000)
    try:
        yield
    finally:
        aside.replace(path)


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_state_whose_place_became_anothers_is_kept(file, dtype):
    pair = Pair(file, dtype)
    pair.mine.zero_grad(), pair.theirs.zero_grad()
    for _ in range(2):
        with elsewhere(file):
            # What needs the place tries again, and says the same.
            for _ in range(2):
                with pytest.raises(ValueError, match='of others'):
                    cast(pair.optimizer, pair.extra)
                assert pair.has_all_state()
            with pytest.raises(ValueError, match='of others'):
                terrace.save(str(file.parent / 'saved'), pair.mine,
                             pair.optimizer)
            state = pair.optimizer.state[next(pair.mine.parameters())]
            assert int(state['step']) == 2 and state['exp_avg'].any()
            assert pair.has_all_state()
        assert pair.has_all_state()
    cast(pair.optimizer, pair.extra), cast(pair.undisturbed, pair.their_extra)
    assert pair.has_all_state()
    pair.train()


def test_state_that_is_kept_is_closed_and_loaded_as_any(file):
    pair = Pair(file)
    with elsewhere(file):
        with pytest.raises(ValueError, match='of others'):
            cast(pair.optimizer, pair.extra)
        saved = pair.optimizer.state_dict()
        pair.optimizer.close()
        with pytest.raises(RuntimeError, match='closed'):
            pair.optimizer.state_dict()
    pair.optimizer = terrace.AdamW([*pair.mine.parameters(), pair.extra],
                                   memory_budget='256KiB', nvme_path=str(file))
    pair.optimizer.load_state_dict(saved)
    pair.train()


def test_a_device_that_is_in_use_meanwhile_loses_nothing(devices, tmp_path):
    """As where names of devices change when one is plugged in."""
    free, used = devices
    link = tmp_path / 'disk'
    link.symlink_to(free)
    pair = Pair(link)
    pair.mine.zero_grad(), pair.theirs.zero_grad()
    holder = os.open(used, os.O_RDWR | os.O_EXCL)
    try:
        link.unlink(), link.symlink_to(used)
        with pytest.raises(OSError) as caught:
            cast(pair.optimizer, pair.extra)
        assert caught.value.errno == errno.EBUSY
        assert pair.has_all_state()
        link.unlink(), link.symlink_to(free)
    finally:
        os.close(holder)
    cast(pair.optimizer, pair.extra), cast(pair.undisturbed, pair.their_extra)
    assert pair.has_all_state()
    pair.train()
    pair.optimizer.close()


class Faulty:
    """A compiled optimizer, of which calls that may fail do so."""

    def __init__(self, native, faults):
        self._native, self._faults = native, faults

    def __getattr__(self, name):
        method = getattr(self._native, name)
        if name not in MOVING:
            return method

        def call(*arguments):
            with self._faults.around():
                return method(*arguments)
        return call


# Calls of the library that a move is made of.
MOVING = ('open', 'add', 'close', 'copy_states', 'read', 'write', 'edit',
          'set_steps', 'forget', 'reset')


class Faults:
    """Raised by `count` calls from number `first` on: instead of the call, or
    after it."""

    def __init__(self, error, first, count, made):
        self._error, self._first, self._made = error, first, made
        self._left = count
        self.calls = 0

    @contextlib.contextmanager
    def around(self):
        self.calls += 1
        fails = self.calls > self._first and self._left > 0
        self._left -= fails
        if not fails or self._made:
            yield
        if fails:
            raise copy.copy(self._error)

    def end(self):
        self._left = 0


ERRORS = [MemoryError('no room'), OSError(errno.ENOSPC, 'full'),
          KeyboardInterrupt()]


def added(optimizer, _):
    optimizer.add_param_group({'params': [large()]})


def given(optimizer, extra):
    """As in Gaussian splatting: more rows, and the state of those."""
    extra.data = torch.ones(50)
    if int(optimizer.state.get(extra, {}).get('step', 0)) != 7:
        optimizer.state[extra] = {'step': torch.tensor(7.0),
                                  'exp_avg': torch.full((50,), 2.0),
                                  'exp_avg_sq': torch.full((50,), 3.0)}
    optimizer.state_dict()


@pytest.mark.parametrize('made', [False, True])
@pytest.mark.parametrize('move, place', [
    (added, 'file'), (cast, 'file'), (given, 'file'), (cast, 'folder')])
def test_no_failure_on_the_way_loses_state(odd_path, monkeypatch, move, place,
                                           made):
    """At each call of the library on the way, once and ever after."""
    make = library.new_optimizer
    first = 0
    reached = True
    while reached:
        for error, count in ((ERRORS[first % 3], 1),
                             (ERRORS[(first + 1) % 3], 1 << 30)):
            path = odd_path / f'{first}-{count}'
            path.touch() if place == 'file' else path.mkdir()
            # All is in memory until it is added to.
            budget = '1MiB' if move is added else '256KiB'
            pair = Pair(path, budget=budget)
            pair.mine.zero_grad(), pair.theirs.zero_grad()
            faults = Faults(error, first, count, made)
            monkeypatch.setattr(library, 'new_optimizer',
                                lambda: Faulty(make(), faults))
            compiled = compiled_of(pair.optimizer)
            compiled._native = Faulty(compiled._native, faults)
            fails = False
            try:
                move(pair.optimizer, pair.extra)
            except type(error):
                fails = True
            reached = faults.calls > first
            faults.end()
            if fails and move is not given:
                assert pair.has_all_state()
            if fails:
                move(pair.optimizer, pair.extra)
            move(pair.undisturbed, pair.their_extra)
            assert pair.has_all_state()
            pair.train()
            pair.optimizer.close()
            monkeypatch.undo()
        first += 1
    assert first > 2


@pytest.mark.parametrize('name', ['edit', 'set_steps'])
@pytest.mark.parametrize('made', [False, True])
def test_what_is_written_into_the_state_is_kept_until_it_is_there(
        monkeypatch, name, made):
    """Of more states than are kept as copies: they are written back while
    others are given."""
    monkeypatch.setattr(state_view, '_KEPT_BYTES', 1000)
    weights = [torch.nn.Parameter(torch.zeros(50)) for _ in range(8)]
    optimizer = terrace.AdamW(weights)
    monkeypatch.setattr(f'{__name__}.MOVING', (name,))
    compiled = compiled_of(optimizer)
    for first in range(4):
        faults = Faults(OSError(errno.ENOSPC, 'full'), first, 1, made)
        native, compiled._native = compiled._native, Faulty(compiled._native,
                                                            faults)
        for index, weight in enumerate(weights):
            values = {'step': torch.tensor(index + first + 1.0),
                      'exp_avg': torch.full((50,), index + first + 1.0),
                      'exp_avg_sq': torch.full((50,), index + 2.0)}
            optimizer.state[weight] = values
        compiled._native = native
        states = optimizer.state_dict()['state']
        for index in range(len(weights)):
            assert states[index]['step'] == index + first + 1
            assert (states[index]['exp_avg'] == index + first + 1).all()
            assert (states[index]['exp_avg_sq'] == index + 2).all()
