"""optimizer.state as scripts write it: as torch.optim.AdamW follows it."""

import collections
import copy
import functools
import gc
import pickle

import pytest
import torch

import drawn
import terrace
from drawn import step
from conftest import compiled_of

SHAPES = ((300, 40), (7,), (40, 30))
made = functools.partial(drawn.made, SHAPES)
STEPS = 5


def zero_in_place(state, weights):
    state[weights[0]]['exp_avg'].zero_()


def scaled_in_place(state, weights):
    for one in state.values():
        one['exp_avg'].mul_(0.5)
        one['exp_avg_sq'] *= 2


def part_in_place(state, weights):
    state[weights[0]]['exp_avg'][3:7].fill_(0.25)


def assigned_part(state, weights):
    state[weights[0]]['exp_avg'][...] = torch.ones(SHAPES[0])


def assigned(state, weights):
    state[weights[1]]['exp_avg'] = torch.full(SHAPES[1], 0.5)


def assigned_step(state, weights):
    state[weights[1]]['step'] = torch.tensor(7.0)


def step_in_place(state, weights):
    state[weights[1]]['step'] += 3
    state[weights[2]]['step'].fill_(1)


def updated(state, weights):
    state[weights[2]].update(exp_avg=torch.zeros(SHAPES[2]),
                             step=torch.tensor(2.0))


def whole(state, weights):
    state[weights[2]] = {'step': torch.tensor(4.0),
                         'exp_avg': torch.ones(SHAPES[2]),
                         'exp_avg_sq': torch.ones(SHAPES[2])}


def deleted(state, weights):
    del state[weights[0]]


def popped(state, weights):
    gone = state.pop(weights[0])
    assert set(gone) == {'step', 'exp_avg', 'exp_avg_sq'}
    assert state.pop(weights[0], 5) == 5


def emptied(state, weights):
    state[weights[0]].clear()


def all_cleared(state, weights):
    state.clear()


def exchanged(state, weights):
    first, second = state[weights[0]], state[weights[1]]
    moment = second['exp_avg'].clone()
    second['exp_avg'].copy_(first['exp_avg'][0, :7])
    first['exp_avg'][0, :7] = moment


def each_replaced(state, weights):
    """As moving them to another device does."""
    for one in state.values():
        for key, value in one.items():
            if torch.is_tensor(value):
                one[key] = value.clone().double().float()


CHANGES = [zero_in_place, scaled_in_place, part_in_place, assigned_part,
           assigned, assigned_step, step_in_place, updated, whole, deleted,
           popped, emptied, all_cleared, exchanged, each_replaced]


def assert_alike(ours, theirs):
    (weights, optimizer), (expected, reference) = ours, theirs
    for weight, other in zip(weights, expected, strict=True):
        torch.testing.assert_close(weight, other, rtol=1e-6, atol=1e-6)
        mine, its = optimizer.state[weight], reference.state[other]
        assert set(mine) == set(its)
        for key in its:
            torch.testing.assert_close(mine[key], its[key], rtol=1e-6,
                                       atol=1e-6)


@pytest.mark.parametrize('change', CHANGES)
def test_is_followed_as_torch_follows_it(change, tier):
    ours = made(terrace.AdamW, **tier)
    theirs = made(torch.optim.AdamW)
    for number in range(STEPS):
        for weights, optimizer in (ours, theirs):
            if number in (2, 3):
                change(optimizer.state, weights)
            step(weights, optimizer, number)
    assert_alike(ours, theirs)
    ours[1].close()


@pytest.mark.parametrize('change', CHANGES)
def test_is_in_what_is_saved(change, tmp_path):
    """Written, and saved before a step."""
    ours, theirs = made(terrace.AdamW), made(torch.optim.AdamW)
    for weights, optimizer in (ours, theirs):
        step(weights, optimizer, 1)
        change(optimizer.state, weights)
    mine, its = ours[1].state_dict()['state'], theirs[1].state_dict()['state']
    its = {key: state for key, state in its.items() if state}
    assert mine.keys() == its.keys()
    for key, state in its.items():
        for name, value in state.items():
            torch.testing.assert_close(mine[key][name], value, rtol=1e-6,
                                       atol=1e-6)
    module = torch.nn.ParameterList(ours[0])
    terrace.save(tmp_path / 'run', module, ours[1])
    terrace.export_torch(tmp_path / 'run.pt', module, ours[1])
    again = made(terrace.AdamW)
    terrace.load(tmp_path / 'run', torch.nn.ParameterList(again[0]), again[1])
    exported = torch.load(tmp_path / 'run.pt', weights_only=True)['optimizer']
    for key, state in again[1].state_dict()['state'].items():
        for name, value in state.items():
            assert torch.equal(value, mine[key][name])
            assert torch.equal(value, exported['state'][key][name])


def test_another_mapping_is_assigned():
    ours, theirs = made(terrace.AdamW), made(torch.optim.AdamW)
    for weights, optimizer in (ours, theirs):
        step(weights, optimizer, 1)
        kept = {key: copy.deepcopy(value) for key, value
                in optimizer.state[weights[1]].items()}
        optimizer.state = collections.defaultdict(dict)
        assert len(optimizer.state) == 0
        optimizer.state[weights[1]] = kept
        step(weights, optimizer, 2)
        optimizer.state = collections.defaultdict(dict, {
            weights[0]: dict(optimizer.state[weights[0]]), weights[2]: {}})
        step(weights, optimizer, 3)
    assert_alike(ours, theirs)


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_of_16_bits_a_forgotten_state_begins_anew(dtype, tier):
    """With a master of the parameter's value, as in a new optimizer."""
    def weight():
        torch.manual_seed(3)
        return torch.nn.Parameter(torch.randn(5000).to(dtype))

    first, second = weight(), weight()
    optimizer = terrace.AdamW([first], lr=1e-3, **tier)
    for number in range(3):
        step([first], optimizer, number)
    del optimizer.state[first]
    with torch.no_grad():
        second.copy_(first)
    step([first], optimizer, 9)
    fresh = terrace.AdamW([second], lr=1e-3)
    step([second], fresh, 9)
    assert torch.equal(first, second)
    for key in ('master_param', 'exp_avg', 'exp_avg_sq', 'step'):
        assert torch.equal(optimizer.state[first][key],
                           fresh.state[second][key])
    optimizer.close()


def test_the_master_is_written():
    weight = torch.nn.Parameter(torch.ones(64, dtype=torch.bfloat16))
    optimizer = terrace.AdamW([weight], lr=0.0, weight_decay=0.0)
    step([weight], optimizer, 1)
    optimizer.state[weight]['master_param'].fill_(1.001)  # which rounds to 1
    step([weight], optimizer, 2)
    assert torch.equal(optimizer.state[weight]['master_param'],
                       torch.full((64,), 1.001))


def test_step_alone_copies_nothing():
    weights, optimizer = made(terrace.AdamW)
    step(weights, optimizer, 1)

    class Refusing:
        def __init__(self, native):
            self._native = native

        def __getattr__(self, name):
            assert name not in ('read', 'copy_states'), name
            return getattr(self._native, name)

    compiled = compiled_of(optimizer)
    compiled._native = Refusing(compiled._native)
    assert [optimizer.state[w]['step'].item() for w in weights] == [1, 1, 1]
    assert list(optimizer.state[weights[0]]) == ['step', 'exp_avg',
                                                 'exp_avg_sq']
    assert 'exp_avg' in list(optimizer.state[weights[0]].keys())


def test_what_is_no_state_is_refused_and_stays_to_be_mended():
    weights, optimizer = made(terrace.AdamW)
    step(weights, optimizer, 1)
    state = optimizer.state[weights[1]]
    moment = state.pop('exp_avg')
    with pytest.raises(ValueError, match='has no exp_avg$'):
        step(weights, optimizer, 2)
    state['exp_avg'] = torch.zeros(3)
    with pytest.raises(ValueError, match=r'exp_avg of .* is \(3,\), not'):
        step(weights, optimizer, 2)
    state['exp_avg'] = moment
    state['shadow'] = moment
    with pytest.raises(ValueError, match='no place for shadow'):
        step(weights, optimizer, 2)
    del state['shadow']
    state['step'] = 1.5
    with pytest.raises(ValueError, match='step of .* is 1.5'):
        step(weights, optimizer, 2)
    state['step'] = 1
    step(weights, optimizer, 2)
    assert optimizer.state[weights[1]]['step'] == 2
    with pytest.raises(TypeError, match='kept for parameters'):
        optimizer.state['epoch'] = {'step': 1}
    with pytest.raises(KeyError):
        del optimizer.state[torch.nn.Parameter(torch.ones(1))]


def test_a_tensor_of_before_a_step_is_not_written_unheard():
    weights, optimizer = made(terrace.AdamW)
    step(weights, optimizer, 1)
    moment = optimizer.state[weights[0]]['exp_avg']
    step(weights, optimizer, 2)
    step(weights, optimizer, 3)  # held, and left alone
    moment.zero_()
    with pytest.raises(ValueError, match=r'\[300, 40\] was taken out'):
        step(weights, optimizer, 4)
    step(weights, optimizer, 4)  # said once


def test_a_state_that_is_held_follows_the_steps():
    weights, optimizer = made(terrace.AdamW)
    step(weights, optimizer, 1)
    state = optimizer.state[weights[0]]
    before = state['exp_avg']
    step(weights, optimizer, 2)
    assert state['step'] == 2 and not torch.equal(state['exp_avg'], before)
    state['exp_avg'].zero_()
    assert optimizer.state[weights[0]] is state
    step(weights, optimizer, 3)
    torch.testing.assert_close(state['exp_avg'], weights[0].grad * 0.1)


def test_copies_that_nobody_holds_are_dropped(monkeypatch):
    """And what was written into them is not lost."""
    from terrace._optimizer import state_view
    monkeypatch.setattr(state_view, '_KEPT_BYTES', 4000)
    weights = [torch.nn.Parameter(torch.zeros(100)) for _ in range(50)]
    optimizer = terrace.AdamW(weights)
    step(weights, optimizer, 1)
    for weight in weights:
        optimizer.state[weight]['exp_avg'].fill_(3.0)
    gc.collect()
    alive = [thing for thing in gc.get_objects()
             if type(thing).__name__ == 'ParameterState']
    assert len(alive) <= 8
    held = [optimizer.state[weight] for weight in weights]
    for state in held:
        assert torch.equal(state['exp_avg'], torch.full((100,), 3.0))
        state['exp_avg_sq'].fill_(1.0)
    copies = optimizer.state_dict()['state']
    assert all(torch.equal(state['exp_avg_sq'], torch.ones(100))
               for state in copies.values())


def test_it_is_a_dict_to_whoever_asks(tmp_path):
    weights, optimizer = made(terrace.AdamW)
    step(weights, optimizer, 1)
    state = optimizer.state[weights[0]]
    assert isinstance(state, dict) and len(state) == 3 and state
    torch.save(state, tmp_path / 'state.pt')
    for copied in (copy.deepcopy(state), copy.copy(state), state.copy(),
                   pickle.loads(pickle.dumps(state)), {**state}, dict(state),
                   torch.load(tmp_path / 'state.pt', weights_only=True),
                   state | {}, {} | state):
        assert isinstance(copied, dict)
        assert type(copied) is not type(state)
        assert list(copied) == ['step', 'exp_avg', 'exp_avg_sq']
        assert list(reversed(copied)) == list(reversed(state))
        for key, value in copied.items():
            assert torch.equal(value, state[key])
    assert repr(optimizer.state[weights[1]]).startswith("{'step': tensor(1.)")
    state |= {'step': torch.tensor(5.0)}
    step(weights, optimizer, 2)
    assert optimizer.state[weights[0]]['step'] == 6
