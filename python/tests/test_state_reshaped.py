"""Parameters that programs grow, prune, transpose and cast in place, with
their state, as torch.optim.AdamW follows it."""

import copy
import functools

import pytest
import torch

import drawn
import terrace
from drawn import step

made = functools.partial(drawn.made, (30_000, 40_000, 7))

MORE = 500


def grown(tensor):
    torch.manual_seed(5)
    return torch.cat([tensor, torch.rand(MORE)])


def grow(weight):
    weight.grad = None
    weight.data = grown(weight.data)


def wide(state):
    return {key: grown(value) if value.dim() else value
            for key, value in state.items()}


def assigned(weights, optimizer):
    kept = dict(optimizer.state[weights[0]])
    grow(weights[0])
    optimizer.state[weights[0]] = wide(kept)


def assigned_of_two(weights, optimizer):
    """As densification of Gaussians does."""
    for weight in weights[:2]:
        grow(weight)
    for weight in weights[:2]:
        optimizer.state[weight] = wide(optimizer.state[weight])


def by_key(weights, optimizer):
    state = optimizer.state[weights[1]]
    grow(weights[1])
    for key in ('exp_avg', 'exp_avg_sq'):
        state[key] = grown(state[key])


def popped(weights, optimizer):
    kept = optimizer.state.pop(weights[0])
    grow(weights[0])
    optimizer.state[weights[0]] = wide(kept)


def loaded(weights, optimizer):
    given = copy.deepcopy(optimizer.state_dict())
    grow(weights[1])
    given['state'][1] = wide(given['state'][1])
    optimizer.load_state_dict(given)


def pruned(weights, optimizer):
    keep = torch.arange(0, 30_000, 3)
    state = optimizer.state[weights[0]]
    weights[0].grad = None
    weights[0].data = weights[0].data[keep]
    for key in ('exp_avg', 'exp_avg_sq'):
        state[key] = state[key][keep]


def transposed(weights, optimizer):
    weight = weights[0]
    weight.grad = None
    weight.data = weight.data.view(300, 100).t().contiguous()
    state = optimizer.state[weight]
    for key in ('exp_avg', 'exp_avg_sq'):
        state[key] = state[key].view(300, 100).t()


def forgotten(weights, optimizer):
    grow(weights[0])
    del optimizer.state[weights[0]]


def read_and_saved(weights, optimizer):
    """As it was, until it is replaced."""
    grow(weights[0])
    assert optimizer.state[weights[0]]['exp_avg'].shape == (30_000,)
    given = copy.deepcopy(optimizer.state_dict())
    assert given['state'][0]['exp_avg'].shape == (30_000,)
    given['state'][0] = wide(given['state'][0])
    optimizer.load_state_dict(given)


CHANGES = [assigned, assigned_of_two, by_key, popped, loaded, pruned,
           transposed, forgotten, read_and_saved]


@pytest.mark.parametrize('change', CHANGES)
def test_is_followed_as_torch_follows_it(change, tier):
    results = []
    for kind, settings in ((terrace.AdamW, tier), (torch.optim.AdamW, {})):
        weights, optimizer = made(kind, **settings)
        for number in range(2):
            step(weights, optimizer, number)
        change(weights, optimizer)
        for number in range(3, 5):
            step(weights, optimizer, number)
        results.append((weights, optimizer))
    (mine, ours), (expected, theirs) = results
    for weight, other in zip(mine, expected, strict=True):
        torch.testing.assert_close(weight, other, rtol=1e-6, atol=1e-6)
        for key, value in theirs.state[other].items():
            torch.testing.assert_close(ours.state[weight][key], value,
                                       rtol=1e-6, atol=1e-6)
    ours.close()


def transpose(weight):
    weight.grad = None
    weight.data = weight.data.view(300, 100).t().contiguous()


@pytest.mark.parametrize('change, now', [
    (grow, r'\[30500\]'), (transpose, r'\[100, 300\]')])
def test_what_is_left_as_it_was_is_refused(change, now, tmp_path):
    weights, optimizer = made(terrace.AdamW)
    step(weights, optimizer, 1)
    change(weights[0])
    kept = [weight.detach().clone() for weight in weights]
    text = (rf"'group 0 parameter 0' was \[30000\] of float32 and is {now} of "
            r'float32; after `del optimizer.state\[parameter\]`')
    module = torch.nn.ParameterList(weights)
    for use in (lambda: step(weights, optimizer, 2),
                lambda: terrace.save(tmp_path / 'run', module, optimizer),
                lambda: terrace.export_torch(tmp_path / 'run.pt', module,
                                             optimizer)):
        with pytest.raises(ValueError, match=text):
            use()
    assert all(map(torch.equal, weights, kept))
    optimizer.state[weights[0]]['exp_avg'] = torch.zeros_like(weights[0])
    with pytest.raises(ValueError, match=r'exp_avg_sq of .* is \(30000,\), not'):
        step(weights, optimizer, 2)
    optimizer.state[weights[0]]['exp_avg_sq'] = torch.zeros_like(weights[0])
    step(weights, optimizer, 2)
    assert optimizer.state[weights[0]]['step'] == 2
    assert optimizer.state[weights[0]]['exp_avg'].shape == weights[0].shape


def test_a_checkpoint_of_the_new_shape_is_loaded(tmp_path):
    weights, optimizer = made(terrace.AdamW)
    others, another = made(terrace.AdamW)
    for number in (1, 2):
        step(weights, optimizer, number)
        step(others, another, number)
    assigned(weights, optimizer)
    terrace.save(tmp_path / 'run', torch.nn.ParameterList(weights), optimizer)
    grow(others[0])
    module = torch.nn.ParameterList(others)
    with pytest.raises(ValueError, match='after `del optimizer.state'):
        terrace.load(tmp_path / 'run', module, another)
    assert another.state[others[0]]['exp_avg'].shape == (30_000,)
    del another.state[others[0]]
    terrace.load(tmp_path / 'run', module, another)
    for pair in ((weights, optimizer), (others, another)):
        step(*pair, 3)
    assert all(map(torch.equal, weights, others))
    given = torch.load(terrace_file(tmp_path, weights, optimizer),
                       weights_only=True)
    assert given['optimizer']['state'][0]['exp_avg'].shape == (30_500,)


def terrace_file(folder, weights, optimizer):
    terrace.export_torch(folder / 'run.pt', torch.nn.ParameterList(weights),
                         optimizer)
    return folder / 'run.pt'


def test_a_cast_one_keeps_its_state_to_be_read():
    weights, optimizer = made(terrace.AdamW)
    step(weights, optimizer, 1)
    expected = optimizer.state[weights[2]]['exp_avg'].clone()
    weights[2].data = weights[2].data.bfloat16()
    assert list(optimizer.state[weights[2]]) == ['step', 'exp_avg',
                                                 'exp_avg_sq']
    copies = optimizer.state_dict()['state']
    assert torch.equal(copies[2]['exp_avg'], expected)
    weights[2].grad = None
    optimizer.state[weights[2]] = copies[2]
    weights[2].grad = torch.ones(7, dtype=torch.bfloat16)
    optimizer.step()
    assert optimizer.state[weights[2]]['step'] == 2
    assert optimizer.state[weights[2]]['master_param'].shape == (7,)


def test_a_transposed_one_without_state_is_stepped():
    results = []
    for kind in (terrace.AdamW, torch.optim.AdamW):
        weights, optimizer = made(kind)
        transpose(weights[0])
        step(weights, optimizer, 1)
        results.append(weights)
    for weight, other in zip(*results, strict=True):
        torch.testing.assert_close(weight, other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize('change', [
    lambda parameter: parameter.data.reshape(4, 16),
    lambda parameter: parameter.data.float()])
def test_a_master_that_was_not_loaded_is_the_parameters(change):
    weight = torch.nn.Parameter(torch.linspace(-2, 2, 64).bfloat16().view(8, 8))
    expected = weight.detach().float().clone()
    twin = torch.nn.Parameter(weight.detach().clone())
    other = torch.optim.AdamW([twin])
    twin.grad = torch.ones_like(twin)
    other.step()
    optimizer = terrace.AdamW([weight])
    optimizer.load_state_dict(other.state_dict())  # torch's has no master
    weight.data = change(weight)
    assert torch.equal(optimizer.state[weight]['master_param'], expected)
    copies = optimizer.state_dict()['state']
    assert torch.equal(copies[0]['master_param'], expected)
