"""State of step 0, as torch.optim.AdamW keeps it: moments stay, and bias
correction begins anew."""

import copy
import functools

import pytest
import torch

import drawn
import terrace
from drawn import step

SHAPES = ((300, 200), (7,), (400, 30))
made = functools.partial(drawn.made, SHAPES)


def zero_steps(weights, optimizer):
    for state in optimizer.state.values():
        state['step'].zero_()


def zeros(weights, optimizer):
    for state in optimizer.state.values():
        for value in state.values():
            value.zero_()


def put_in(weights, optimizer):
    optimizer.state[weights[1]] = {
        'step': torch.tensor(0.0), 'exp_avg': torch.ones(SHAPES[1]),
        'exp_avg_sq': torch.ones(SHAPES[1])}


def loaded(weights, optimizer):
    given = copy.deepcopy(optimizer.state_dict())
    for state in given['state'].values():
        state['step'] *= 0
    optimizer.load_state_dict(given)


def written_back_first(weights, optimizer):
    zero_steps(weights, optimizer)
    for weight in weights:
        weight.grad = None
    optimizer.step()
    assert len(optimizer.state) == len(weights)
    for weight in weights:
        assert weight in optimizer.state
        assert list(optimizer.state[weight]) == ['step', 'exp_avg',
                                                 'exp_avg_sq']


CHANGES = [zero_steps, zeros, put_in, loaded, written_back_first]


def assert_alike(ours, theirs):
    (weights, optimizer), (expected, reference) = ours, theirs
    assert len(optimizer.state) == len(reference.state)
    mine, its = optimizer.state_dict()['state'], reference.state_dict()['state']
    assert mine.keys() == its.keys()
    for key, state in its.items():
        assert mine[key].keys() == state.keys()
        for name, value in state.items():
            torch.testing.assert_close(mine[key][name], value, rtol=1e-6,
                                       atol=1e-6)
    for weight, other in zip(weights, expected, strict=True):
        torch.testing.assert_close(weight, other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize('change', CHANGES)
def test_moments_outlive_it(change, tier):
    ours, theirs = made(terrace.AdamW, **tier), made(torch.optim.AdamW)
    for weights, optimizer in (ours, theirs):
        for number in range(3):
            step(weights, optimizer, number)
        change(weights, optimizer)
    assert_alike(ours, theirs)
    for weights, optimizer in (ours, theirs):
        step(weights, optimizer, 9)
    assert_alike(ours, theirs)
    ours[1].close()


def test_of_a_parameter_that_was_not_stepped():
    ours, theirs = made(terrace.AdamW), made(torch.optim.AdamW)
    for weights, optimizer in (ours, theirs):
        put_in(weights, optimizer)
        assert len(optimizer.state) == 1
        optimizer.zero_grad()
        optimizer.step()
    assert_alike(ours, theirs)
    for weights, optimizer in (ours, theirs):
        del optimizer.state[weights[1]]
        assert weights[1] not in optimizer.state
        step(weights, optimizer, 1)
    assert_alike(ours, theirs)


def test_a_group_is_added_meanwhile(tier):
    results = []
    for kind, settings in ((terrace.AdamW, tier), (torch.optim.AdamW, {})):
        weights, optimizer = made(kind, **settings)
        step(weights, optimizer, 1)
        zero_steps(weights, optimizer)
        optimizer.zero_grad()
        optimizer.step()
        torch.manual_seed(2)
        more = torch.nn.Parameter(torch.randn(80_000))
        optimizer.add_param_group({'params': [more]})
        step([*weights, more], optimizer, 3)
        results.append(([*weights, more], optimizer))
    assert_alike(*results)


def test_the_checkpoints_of_torch_keep_it(tmp_path):
    weights, optimizer = made(terrace.AdamW)
    step(weights, optimizer, 1)
    zero_steps(weights, optimizer)
    module = torch.nn.ParameterList(weights)
    terrace.export_torch(tmp_path / 'run.pt', module, optimizer)
    others, again = made(terrace.AdamW)
    terrace.import_torch(tmp_path / 'run.pt', torch.nn.ParameterList(others),
                         again)
    for weight, other in zip(weights, others):
        assert torch.equal(optimizer.state[weight]['exp_avg'],
                           again.state[other]['exp_avg'])
        assert again.state[other]['step'] == 0


def test_save_refuses_what_it_would_lose(tmp_path):
    weights, optimizer = made(terrace.AdamW)
    step(weights, optimizer, 1)
    zero_steps(weights, optimizer)
    module, path = torch.nn.ParameterList(weights), tmp_path / 'run'
    with pytest.raises(ValueError, match="the state of 'group 0 parameter 0' "
                       'has step 0 .* save after the next step, or '
                       r'torch\.save'):
        terrace.save(path, module, optimizer)
    assert not path.exists()
    zeros(weights, optimizer)  # which is no state
    terrace.save(path, module, optimizer)
    step(weights, optimizer, 2)
    terrace.save(path, module, optimizer)
    others, again = made(terrace.AdamW)
    terrace.load(path, torch.nn.ParameterList(others), again)
    for number in (3, 4):
        step(weights, optimizer, number)
        step(others, again, number)
    for weight, other in zip(weights, others):
        assert torch.equal(weight, other)


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_of_16_bits_the_master_outlives_it(dtype):
    weight = torch.nn.Parameter(torch.ones(64, dtype=dtype))
    optimizer = terrace.AdamW([weight], lr=0.0, weight_decay=0.0)
    step([weight], optimizer, 1)
    state = optimizer.state[weight]
    state['master_param'].fill_(1.0001)
    state['step'].zero_()
    step([weight], optimizer, 2)
    assert torch.equal(optimizer.state[weight]['master_param'],
                       torch.full((64,), 1.0001))
    assert optimizer.state[weight]['step'] == 1
