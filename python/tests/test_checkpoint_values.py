"""Of what is given to terrace.save and export_torch: a file that was written
can be read by a program that allows torch.load nothing more."""

import argparse
import collections
import dataclasses
import datetime
import decimal
import enum
import functools
import io
import math
import pathlib

import pytest
import torch

import terrace
from conftest import batches, largest_difference, model, train
from terrace._state.compiled import Compiled

numpy = pytest.importorskip('numpy')


class Kind(enum.IntEnum):
    ONE = 1


@dataclasses.dataclass
class Settings:
    width: int = 3


class Named(collections.OrderedDict):
    pass


Pair = collections.namedtuple('Pair', 'first second')


class Holder:
    """Something with a state."""

    def __init__(self, state=None):
        self.state = state

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


def saved(path, network, optimizer=None, **given):
    terrace.save(path, network, optimizer, **given)


def exported(path, network, optimizer=None, **given):
    terrace.export_torch(path, network, optimizer, **given)


def loaded(path, network, optimizer=None, **objects):
    return terrace.load(path, network, optimizer, **objects)


def imported(path, network, optimizer=None, **objects):
    return terrace.import_torch(path, network, optimizer, **objects)['values']


DOORS = pytest.mark.parametrize('write, read', [
    pytest.param(saved, loaded, id='save'),
    pytest.param(exported, imported, id='export_torch')])


def bytes_below(path):
    """Of every file there, by its name."""
    return {each.name: each.read_bytes() for each in
            (path.iterdir() if path.is_dir() else [path]) if each.is_file()}


@DOORS
def test_a_rate_that_numpy_computed(tmp_path, write, read):
    def make():
        network = model()
        optimizer = terrace.AdamW(network.parameters(), lr=1e-2)
        return network, optimizer, torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda k: 0.5 * (1 + numpy.cos(numpy.pi * k / 10)))

    network, optimizer, schedule = make()
    train(network, optimizer, batches(4), schedule.step)
    assert isinstance(optimizer.param_groups[0]['lr'], numpy.float64)
    write(tmp_path / 'c', network, optimizer, schedule=schedule, values={})
    other, resumed, following = make()
    read(tmp_path / 'c', other, resumed, schedule=following)
    rate = resumed.param_groups[0]['lr']
    assert type(rate) is float and rate == optimizer.param_groups[0]['lr']
    train(network, optimizer, batches(3, seed=7), schedule.step)
    train(other, resumed, batches(3, seed=7), following.step)
    assert largest_difference(network, other) == 0


NUMBERS = [
    (numpy.float64(0.1), 0.1), (numpy.float32(0.1), float(numpy.float32(0.1))),
    (numpy.float16(3), 3.0), (numpy.int64(-7), -7), (numpy.int8(5), 5),
    (numpy.uint64(2 ** 64 - 1), 2 ** 64 - 1), (numpy.bool_(True), True),
    (numpy.float64('inf'), math.inf), (numpy.complex64(1 + 2j), 1 + 2j),
    (numpy.str_('text'), 'text'), (numpy.bytes_(b'\0\xff'), b'\0\xff'),
    (numpy.longdouble(1.5), 1.5)]


@DOORS
def test_numbers_of_numpy_are_numbers(tmp_path, write, read):
    given = [one for one, _ in NUMBERS]
    expected = [plain for _, plain in NUMBERS]
    shared = [numpy.float64(2)]
    state = collections.OrderedDict(
        a=tuple(given), b={numpy.int64(3): shared}, c=[shared])
    taken = Holder()
    write(tmp_path / 'c', model(), values={'given': given, 'set': set(given)},
          thing=Holder(state))
    values = read(tmp_path / 'c', model(), thing=taken)
    assert values == {'given': expected, 'set': set(expected)}
    assert taken.state == {'a': tuple(expected), 'b': {3: [2.0]}, 'c': [[2.0]]}
    assert list(map(type, values['given'])) == list(map(type, expected))
    assert list(map(type, taken.state['a'])) == list(map(type, expected))
    assert type(taken.state) is collections.OrderedDict
    assert taken.state['b'][3] is taken.state['c'][0]
    # What the program has is as it was.
    assert isinstance(state['b'][3][0], numpy.float64)


@DOORS
def test_all_that_the_reader_takes_comes_back(tmp_path, write, read):
    holds_itself = [1]
    holds_itself.append(holds_itself)
    values = {
        'nothing': None, 'numbers': (1, 2.5, True, 2 ** 200, -0.0, 1j),
        'texts': ['', 'ä\ud800', b'\0'], 'bytes': bytearray(b'x'),
        'set': {1, 'a'}, 'size': torch.Size([2, 3]), 'dtype': torch.bfloat16,
        'device': torch.device('cpu'), 'counter': collections.Counter('aab'),
        'ordered': collections.OrderedDict(z=1, a={3: [{}]}),
        'tensor': torch.arange(5), 'random': torch.Generator().get_state()}
    write(tmp_path / 'c', model(), values={**values, 'itself': holds_itself})
    found = read(tmp_path / 'c', model())
    itself = found.pop('itself')
    assert itself[0] == 1 and itself[1] is itself
    for key in ('tensor', 'random'):
        assert torch.equal(found.pop(key), values.pop(key))
    assert found == values
    assert {key: type(value) for key, value in found.items()} == {
        key: type(value) for key, value in values.items()}


REFUSED = {
    'numpy.ndarray': lambda: numpy.arange(3),
    'numpy.datetime64': lambda: numpy.datetime64('2020-01-01'),
    'numpy.timedelta64': lambda: numpy.timedelta64(1, 'ns'),
    'numpy.longdouble': lambda: numpy.longdouble('0.1'),
    'Path': lambda: pathlib.Path('data'),
    'argparse.Namespace': lambda: argparse.Namespace(lr=1),
    'decimal.Decimal': lambda: decimal.Decimal('0.1'),
    'datetime.datetime': lambda: datetime.datetime(2020, 1, 1),
    'Kind': lambda: Kind.ONE, 'Settings': Settings, 'Pair': lambda: Pair(1, 2),
    'Named': lambda: Named(a=1),
    'collections.defaultdict': lambda: collections.defaultdict(list, a=[1]),
    'torch._C.Generator': torch.Generator, 'function': lambda: lambda: 1,
    'functools.partial': lambda: functools.partial(print, 1),
    'frozenset': lambda: frozenset([1]), 'type': lambda: Settings,
    'memory_format': lambda: torch.channels_last}

# Where a value is given, and what it is called then.
PLACES = {
    'values': ("values['at']", lambda bad: {'values': {'at': bad}}),
    'in a list': ("values['a'][1]['b'][0]", lambda bad: {
        'values': {'a': [0, {'b': (bad,)}]}}),
    'state': ("thing.state_dict()['at']", lambda bad: {
        'thing': Holder({'ok': 1, 'at': bad})}),
    'whole state': ('thing.state_dict()', lambda bad: {'thing': Holder(bad)})}


def refused(write, path, kind, place, **given):
    """Whether nothing is changed by a write that says what it refuses."""
    before, beside = bytes_below(path), list(path.parent.iterdir())
    with pytest.raises(ValueError) as caught:
        write(path, model(seed=9), **given)
    text = str(caught.value)
    assert text.startswith(f'terrace: {place} is a ') and kind in text
    assert 'in its place' in text
    assert bytes_below(path) == before
    assert list(path.parent.iterdir()) == beside


@DOORS
@pytest.mark.parametrize('kind', REFUSED)
def test_what_no_reader_takes_is_refused_by_its_place(tmp_path, write, read,
                                                      kind):
    path = tmp_path / 'c'
    write(path, model(), values={'epoch': 3})
    for place, given in PLACES.values():
        refused(write, path, kind, place, **given(REFUSED[kind]()))
    assert read(path, model()) == {'epoch': 3}


@DOORS
def test_random_states_of_numpy_are_refused_where_they_are(tmp_path, write,
                                                           read):
    path = tmp_path / 'c'
    write(path, model(), values={'epoch': 3})
    refused(write, path, 'numpy.ndarray', "values['numpy'][1]",
            values={'numpy': numpy.random.get_state()})
    refused(write, path, 'numpy.ndarray', "values['r']['state']['key']",
            values={'r': numpy.random.MT19937(5).state})
    plain = numpy.random.default_rng(5).bit_generator.state
    write(path, model(), values={'r': plain})
    assert read(path, model())['r'] == plain


@DOORS
def test_options_of_groups_are_refused_too(tmp_path, write, read):
    network = model()
    optimizer = terrace.AdamW(network.parameters())
    train(network, optimizer, batches(1))
    path = tmp_path / 'c'
    write(path, network, optimizer, values={'epoch': 3})
    before = bytes_below(path)
    optimizer.param_groups[0]['origin'] = pathlib.Path('x')
    with pytest.raises(ValueError, match=r"param_groups.*'origin'\] is a .*Path"):
        write(path, network, optimizer, values={'epoch': 4})
    assert bytes_below(path) == before
    del optimizer.param_groups[0]['origin']
    write(path, network, optimizer, values={'epoch': 5})
    assert read(path, network, optimizer) == {'epoch': 5}


@DOORS
def test_keys_and_depth(tmp_path, write, read):
    path = tmp_path / 'c'
    write(path, model(), values={'epoch': 3})
    refused(write, path, 'Path', "a key of values['a']",
            values={'a': {pathlib.Path('x'): 1}})
    before, deep = bytes_below(path), []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ValueError, match='values is nested too deep'):
        write(path, model(), values={'deep': deep})
    assert bytes_below(path) == before
    while deep:  # which a destructor would do within itself
        deep = deep.pop()
    for _ in range(9):
        for _ in range(100):
            deep = [deep]
        try:
            write(path, model(), values={'deep': deep})
            assert read(path, model())['deep'] == deep
        except ValueError as error:
            assert 'values is nested too deep' in str(error)


@DOORS
def test_a_first_write_that_is_refused_leaves_nothing(tmp_path, write, read):
    with pytest.raises(ValueError, match='Namespace'):
        write(tmp_path / 'c', model(), values={'a': argparse.Namespace()})
    assert list(tmp_path.iterdir()) == []


@DOORS
def test_what_a_program_allows_its_reader_is_written(tmp_path, write, read):
    with torch.serialization.safe_globals([argparse.Namespace]):
        write(tmp_path / 'c', model(),
              values={'a': argparse.Namespace(lr=1)})
        assert read(tmp_path / 'c', model())['a'].lr == 1


def test_an_exported_models_extra_state(tmp_path):
    class Extra(torch.nn.Linear):
        extra = None

        def get_extra_state(self):
            return self.extra

        def set_extra_state(self, state):
            self.extra = state

    network, path = Extra(2, 2), tmp_path / 'run.pt'
    network.extra = {'scale': numpy.float32(0.5)}
    terrace.export_torch(path, network)
    other = Extra(2, 2)
    terrace.import_torch(path, other)
    assert other.extra == {'scale': 0.5} and type(other.extra['scale']) is float
    before = path.read_bytes()
    network.extra = {'scale': numpy.ones(2)}
    with pytest.raises(ValueError, match=r"_extra_state'\]\['scale'\] is a "
                                         'numpy.ndarray'):
        terrace.export_torch(path, network)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@DOORS
def test_numbers_in_a_counter(tmp_path, write, read):
    network = model()
    optimizer = terrace.AdamW(network.parameters())
    schedule = torch.optim.lr_scheduler.MultiStepLR(
        optimizer, numpy.linspace(2, 6, 3).astype(int))
    counter = collections.Counter({numpy.int64(3): numpy.int32(2), 'b': 1})
    write(tmp_path / 'c', network, optimizer, schedule=schedule,
          values={'counter': counter})
    other = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1])
    found = read(tmp_path / 'c', network, optimizer, schedule=other)['counter']
    assert type(found) is collections.Counter and found == {3: 2, 'b': 1}
    assert all(type(key) is not numpy.int64 for key in found)
    assert other.milestones == {2: 1, 4: 1, 6: 1}


class Whole(int):
    pass


class Broken(float):
    pass


@DOORS
@pytest.mark.parametrize('value, instead', [
    (Whole(3), 'int()'), (Broken(2.5), 'float()'),
    (decimal.Decimal('0.1'), 'float()'),
    (numpy.timedelta64(1, 'ns'), 'int()'), (numpy.void(b'x'), '.item()'),
    (numpy.longdouble('0.1'), 'float()')])
def test_what_is_advised_is_of_the_same_kind(tmp_path, write, read, value,
                                             instead):
    with pytest.raises(ValueError) as caught:
        write(tmp_path / 'c', model(), values={'v': value})
    assert f'Give {instead}' in str(caught.value).replace('its .', '.')


def bad_beside_itself():
    outer = [1]
    outer += [outer, {'p': pathlib.Path('x')}]
    return outer, "values['v'][2]['p']"


def bad_behind_itself():
    outer = {}
    outer['back'] = [outer]
    outer['p'] = (pathlib.Path('x'),)
    return outer, "values['v']['p'][0]"


@DOORS
@pytest.mark.parametrize('make', [bad_beside_itself, bad_behind_itself])
def test_a_bad_value_in_what_holds_itself(tmp_path, write, read, make):
    write(tmp_path / 'c', model(), values={'epoch': 3})
    value, place = make()
    refused(write, tmp_path / 'c', 'Path', place, values={'v': value})


@DOORS
def test_numbers_in_what_holds_itself(tmp_path, write, read):
    value = [numpy.float64(1)]
    value += [value, (value, {'k': value})]
    write(tmp_path / 'c', model(), values={'v': value})
    found = read(tmp_path / 'c', model())['v']
    assert type(found[0]) is float and found[1] is found
    assert found[2][0] is found and found[2][1]['k'] is found


def test_an_older_checkpoint_with_what_is_refused_now(tmp_path):
    """As versions wrote it that did not ask."""
    rest, run, network = io.BytesIO(), tmp_path / 'run', model()
    torch.save({'layout': 2, 'others': {}, 'groups': [],
                'random': torch.get_rng_state(), 'random_of_gpus': [],
                'values': {'a': argparse.Namespace(lr=1)}, 'objects': {}}, rest)
    named = dict(network.named_parameters())
    Compiled().checkpoint.save(
        str(run), list(named.values()), list(named), [-1] * len(named),
        torch.frombuffer(rest.getbuffer(), dtype=torch.uint8))
    other = model(seed=5)
    before = other[0].weight.clone()
    with pytest.raises(ValueError, match=f'^terrace: {run} .*argparse.Namespace'
                                         '.*safe_globals'):
        terrace.load(run, other)
    assert torch.equal(other[0].weight, before)
    # What the message says helps.
    with torch.serialization.safe_globals([argparse.Namespace]):
        assert terrace.load(run, other)['a'].lr == 1
    assert largest_difference(network, other) == 0
