"""The mapping that optimizer.state is: set aside and put back, copied, saved,
and asked what a dict is asked."""

import collections
import copy

import pytest
import torch

import terrace
from drawn import step

KINDS = [terrace.AdamW, torch.optim.AdamW]


def made(kind, count=2, **settings):
    torch.manual_seed(1)
    weights = [torch.nn.Parameter(torch.randn(200, 60)) for _ in range(count)]
    optimizer = kind(weights, lr=0.01, **settings)
    for number in range(3):
        step(weights, optimizer, number)
    return weights, optimizer


def set_aside(weights, optimizer):
    kept = optimizer.state
    optimizer.state = collections.defaultdict(dict)
    assert len(kept) == 2 and len(optimizer.state) == 0
    step(weights, optimizer, 7)
    assert kept[weights[0]]['step'] == 3
    optimizer.state = kept
    assert optimizer.state is kept
    assert optimizer.state[weights[0]]['step'] == 3
    step(weights, optimizer, 8)
    kept[weights[1]]['exp_avg'].zero_()


def set_aside_and_written(weights, optimizer):
    held, kept = optimizer.state[weights[1]], optimizer.state
    optimizer.state = collections.defaultdict(dict)
    step(weights, optimizer, 7)
    kept[weights[0]]['exp_avg'].zero_()
    held['exp_avg_sq'].fill_(2.0)
    assert kept[weights[1]] is held
    kept[weights[0]]['step'] += 4
    optimizer.state = kept


def copied(weights, optimizer):
    kept = copy.copy(optimizer.state)
    optimizer.state.clear()
    assert len(kept) == 2
    step(weights, optimizer, 7)
    optimizer.state = kept


def copied_deep(weights, optimizer):
    kept = [copy.deepcopy(dict(state)) for state in optimizer.state.values()]
    optimizer.state = collections.defaultdict(dict)
    optimizer.state |= dict(zip(weights, kept))


def taken_twice(weights, optimizer):
    first = optimizer.state
    optimizer.state = collections.defaultdict(dict)
    second = optimizer.state
    step(weights, optimizer, 7)
    optimizer.state = first
    assert second[weights[0]]['step'] == 1
    optimizer.state = second
    assert first[weights[0]]['step'] == 3
    assert first is not optimizer.state


@pytest.mark.parametrize('change', [set_aside, set_aside_and_written, copied,
                                    copied_deep, taken_twice])
def test_is_followed_as_torch_follows_it(change, tier):
    results = []
    for kind, settings in ((terrace.AdamW, tier), (torch.optim.AdamW, {})):
        weights, optimizer = made(kind, **settings)
        change(weights, optimizer)
        step(weights, optimizer, 9)
        results.append((weights, optimizer))
    (mine, ours), (expected, theirs) = results
    for weight, other in zip(mine, expected, strict=True):
        torch.testing.assert_close(weight, other, rtol=1e-6, atol=1e-6)
        assert ours.state[weight]['step'] == theirs.state[other]['step']
    ours.close()


@pytest.mark.parametrize('kind', KINDS)
def test_two_optimizers_exchange_theirs(kind):
    weights, optimizer = made(kind)
    other = kind(weights, lr=0.02)
    step(weights, other, 4)
    optimizer.state, other.state = other.state, optimizer.state
    assert optimizer.state[weights[0]]['step'] == 1
    assert other.state[weights[1]]['step'] == 3
    assert len(optimizer.state) == len(other.state) == 2
    step(weights, other, 5)
    assert other.state[weights[1]]['step'] == 4
    assert optimizer.state[weights[1]]['step'] == 1


def test_what_is_no_state_changes_nothing():
    weights, optimizer = made(terrace.AdamW)
    kept = optimizer.state
    with pytest.raises(TypeError, match='kept for parameters, not for 3; keep'):
        optimizer.state = {weights[0]: {}, 3: {}}
    assert optimizer.state is kept and len(kept) == 2
    with pytest.raises(KeyError, match="not for 'global'; keep it beside"):
        optimizer.state['global']
    assert optimizer.state.get('global') is None
    assert 'global' not in optimizer.state


@pytest.mark.parametrize('kind', KINDS)
def test_it_is_a_dict_to_whoever_asks(kind, tmp_path):
    weights, optimizer = made(kind)
    state = optimizer.state
    assert isinstance(state, dict) and state.default_factory is dict
    for copied in (state.copy(), copy.copy(state), state | {}, {} | state,
                   dict(state), {**state}):
        assert isinstance(copied, dict)
        assert list(copied) == list(state) == weights
    assert all(p is q for p, q in zip(reversed(state), reversed(weights)))
    assert state != {} and not state == {} and state
    assert state[weights[0]] != {} and not state[weights[0]] == {}
    torch.save(state, tmp_path / 'state.pt')
    loaded = torch.load(tmp_path / 'state.pt', weights_only=False)
    assert [float(one['step']) for one in loaded.values()] == [3, 3]
    parameter, last = state.popitem()
    assert parameter is weights[1] and float(last['step']) == 3
    assert list(state) == weights[:1]
    state.popitem()
    assert state == {} and not state != {} and not state
    with pytest.raises(KeyError):
        state.popitem()
