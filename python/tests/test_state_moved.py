"""State that scripts carry from a parameter to another, hold and rebuild."""

import collections
import copy

import pytest
import torch

import terrace
from drawn import step


def stepped(kind, count=2, size=4, **settings):
    torch.manual_seed(1)
    weights = [torch.nn.Parameter(torch.randn(size)) for _ in range(count)]
    optimizer = kind(weights, lr=0.01, **settings)
    step(weights, optimizer, 1)
    return weights, optimizer


KINDS = (terrace.AdamW, torch.optim.AdamW)


def test_a_larger_parameter_takes_the_state_over():
    """As in Gaussian splatting: a new tensor with more rows."""
    results = []
    for kind in KINDS:
        weights, optimizer = stepped(kind)
        old = weights[0]
        state = optimizer.state.get(old, None)
        for key in ('exp_avg', 'exp_avg_sq'):
            state[key] = torch.cat([state[key], torch.zeros(2)])
        del optimizer.state[old]
        new = torch.nn.Parameter(torch.cat([old.detach(), torch.ones(2)]))
        optimizer.param_groups[0]['params'][0] = new
        optimizer.state[new] = state
        step([new, weights[1]], optimizer, 2)
        results.append((new, optimizer.state[new]['exp_avg'],
                        optimizer.state[new]['step']))
        assert optimizer.state.get(old) is None
    for mine, its in zip(*results, strict=True):
        torch.testing.assert_close(mine, its)


def test_a_state_that_was_deleted_stays_with_whoever_has_it():
    for end in ('del', 'clear', 'pop'):
        for kind in KINDS:
            weights, optimizer = stepped(kind)
            state = optimizer.state[weights[0]]
            if end == 'del':
                del optimizer.state[weights[0]]
            elif end == 'pop':
                optimizer.state.pop(weights[0])
            else:
                optimizer.state.clear()
            assert set(state) == {'step', 'exp_avg', 'exp_avg_sq'}
            assert weights[0] not in optimizer.state


def test_states_that_are_held_are_followed_beyond_what_is_kept(monkeypatch):
    from terrace._optimizer import state_view
    monkeypatch.setattr(state_view, '_KEPT_BYTES', 1000)
    for kind in KINDS:
        weights, optimizer = stepped(kind, count=12, size=50)
        for state in list(optimizer.state.values()):
            state['exp_avg'].zero_()
        assert all(not optimizer.state[w]['exp_avg'].any() for w in weights)


def test_a_state_of_before_a_step_is_written_after_it():
    for kind in KINDS:
        weights, optimizer = stepped(kind)
        states = [optimizer.state[weight] for weight in weights]
        step(weights, optimizer, 2)
        for state in states:
            state['exp_avg'].zero_()
        del states, state
        assert all(not optimizer.state[w]['exp_avg'].any() for w in weights)
        moment = optimizer.state[weights[0]]['exp_avg']
        assert optimizer.state[weights[0]]['step'] == 2
        moment.fill_(1.0)
        step(weights, optimizer, 3)


def test_containers_are_rebuilt_by_their_type():
    weights, optimizer = stepped(terrace.AdamW)
    for weight, state in optimizer.state.items():
        optimizer.state[weight] = type(state)(
            collections.OrderedDict(state.items()))
    copied = copy.deepcopy(optimizer.state)
    assert type(copied) is dict and len(copied) == 2
    step(weights, optimizer, 2)
    assert optimizer.state[weights[1]]['step'] == 2


def test_is_looked_at_in_inference_mode():
    weights, optimizer = stepped(terrace.AdamW)
    with torch.inference_mode():
        assert optimizer.state[weights[0]]['exp_avg'].norm() > 0
        assert optimizer.state[weights[1]]['step'] == 1
    optimizer.state[weights[0]]['exp_avg'].zero_()
    step(weights, optimizer, 2)


@pytest.mark.parametrize('how', ['unfrozen', 'added'])
def test_memory_grows_with_the_parameters(how):
    """All in memory: each step one more parameter."""
    weights = [torch.nn.Parameter(torch.zeros(300_000)) for _ in range(8)]
    for weight in weights[1:]:
        weight.requires_grad_(False)
    optimizer = terrace.AdamW(weights if how == 'unfrozen' else weights[:1])
    for number, weight in enumerate(weights):
        weight.requires_grad_(True)
        if how == 'added' and number:
            optimizer.add_param_group({'params': [weight]})
        step(weights[:number + 1], optimizer, number)
    assert [int(optimizer.state[w]['step']) for w in weights] == [
        8, 7, 6, 5, 4, 3, 2, 1]


def test_what_left_the_groups_may_be_anything():
    weights, optimizer = stepped(terrace.AdamW)
    new = torch.nn.Parameter(weights[0].data)  # on its storage
    optimizer.param_groups[0]['params'][0] = new
    step([new, weights[1]], optimizer, 2)
    gone = optimizer.param_groups[0]['params'].pop()
    gone.data = gone.data.half()
    step([new], optimizer, 3)
    assert optimizer.state[new]['step'] == 2
