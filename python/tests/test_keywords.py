"""torch.optim.AdamW's keywords: followed, or refused by name, whenever they
appear."""

import warnings

import pytest
import torch

import terrace
from conftest import compiled_of

KINDS = [(terrace.AdamW, torch.optim.AdamW), (terrace.Adam, torch.optim.Adam)]


def both(kinds, groups=((3, 4), (5,)), **keywords):
    """Ours and torch's optimizer, of equal parameters."""
    made = []
    for kind in kinds:
        torch.manual_seed(1)
        weights = [torch.nn.Parameter(torch.randn(shape)) for shape in groups]
        made.append((weights, kind([{'params': [w]} for w in weights],
                                   lr=0.1, **keywords)))
    return made


def step_all(made, seed):
    for weights, optimizer in made:
        torch.manual_seed(seed)
        for weight in weights:
            weight.grad = torch.randn(weight.shape)
        optimizer.step()


def assert_close(made):
    (ours, _), (theirs, _) = made
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize('kinds', KINDS)
@pytest.mark.parametrize('keywords', [
    {'fused': True}, {'foreach': True}, {'foreach': False, 'fused': False},
    {'amsgrad': False, 'differentiable': False}, {'maximize': True},
    {'maximize': True, 'weight_decay': 0.3},
    {'lr': torch.tensor(0.1)}])
def test_is_taken_by_the_constructor(kinds, keywords):
    given = {**keywords, 'lr': 0.1} if 'lr' not in keywords else keywords
    made = []
    for kind in kinds:
        torch.manual_seed(1)
        weights = [torch.nn.Parameter(torch.randn(3, 4))]
        made.append((weights, kind(weights, **given)))
    for seed in range(5):
        step_all(made, seed)
    assert_close(made)
    for key, value in keywords.items():
        assert made[0][1].param_groups[0][key] == value
        assert made[0][1].defaults[key] == value


def test_capturable_makes_no_difference():
    weight = torch.nn.Parameter(torch.zeros(3))
    optimizer = terrace.AdamW([weight], lr=1.0, capturable=True)
    weight.grad = torch.ones(3)
    optimizer.step()
    torch.testing.assert_close(weight.detach(), torch.full((3,), -1.0))


@pytest.mark.parametrize('kinds', KINDS)
def test_is_changed_between_steps(kinds):
    made = both(kinds, weight_decay=0.1)
    for seed in range(6):
        if seed == 2:
            for _, optimizer in made:
                optimizer.param_groups[1]['maximize'] = True
        if seed == 4:
            for _, optimizer in made:
                optimizer.param_groups[0].update(foreach=True, maximize=True)
                optimizer.param_groups[1].update(fused=None, maximize=False)
        step_all(made, seed)
    assert_close(made)


def test_the_kind_of_decay_is_a_groups_own():
    made = both(KINDS[1], weight_decay=0.2, decoupled_weight_decay=True)
    for seed in range(4):
        if seed == 2:
            for _, optimizer in made:
                optimizer.param_groups[0]['decoupled_weight_decay'] = False
        step_all(made, seed)
    assert_close(made)


def test_maximize_with_a_norm_and_streamed_state(tmp_path):
    """16 bits through a master, clipped, on a path."""
    results = []
    for settings in ({}, {'memory_budget': '256KiB',
                          'nvme_path': str(tmp_path)}):
        weight = torch.nn.Parameter(torch.zeros(50_000, dtype=torch.bfloat16))
        mirror = torch.nn.Parameter(torch.zeros(50_000, dtype=torch.bfloat16))
        up = terrace.AdamW([weight], lr=0.01, max_grad_norm=1.0,
                           maximize=True, **settings)
        down = terrace.AdamW([mirror], lr=0.01, max_grad_norm=1.0, **settings)
        for seed in range(3):
            torch.manual_seed(seed)
            weight.grad = torch.randn(50_000).bfloat16()
            mirror.grad = -weight.grad
            up.step()
            down.step()
        assert torch.equal(weight, mirror) and weight.abs().max() > 0
        results.append(weight.detach().clone())
        up.close()
        down.close()
    assert torch.equal(*results)


@pytest.mark.parametrize('key', ['amsgrad', 'differentiable'])
@pytest.mark.parametrize('when', ['made', 'in a group', 'added', 'changed',
                                  'loaded'])
def test_what_cannot_be_followed_is_refused_by_name(key, when):
    weight = torch.nn.Parameter(torch.ones(3))
    other = torch.nn.Parameter(torch.ones(3))
    refused = pytest.raises(NotImplementedError, match=f'{key}=True')
    if when == 'made':
        with refused:
            terrace.AdamW([weight], **{key: True})
        return
    if when == 'in a group':
        with refused:
            terrace.AdamW([{'params': [weight], key: True}])
        return
    optimizer = terrace.AdamW([weight])
    weight.grad = torch.ones(3)
    if when == 'added':
        with refused:
            optimizer.add_param_group({'params': [other], key: True})
    elif when == 'changed':
        optimizer.param_groups[0][key] = True
        with refused:
            optimizer.step()
        optimizer.param_groups[0][key] = False
    else:
        state = optimizer.state_dict()
        state['param_groups'][0][key] = True
        with refused:
            optimizer.load_state_dict(state)
    before = weight.detach().clone()
    optimizer.step()
    assert not torch.equal(weight, before)


@pytest.mark.parametrize('rate', ['0.1', b'1', None, [0.1]])
def test_a_rate_that_is_no_number(rate):
    weight = torch.nn.Parameter(torch.ones(3))
    with pytest.raises(TypeError):
        terrace.AdamW([weight], lr=rate)
    optimizer = terrace.AdamW([weight])
    weight.grad = torch.ones(3)
    optimizer.param_groups[0]['lr'] = rate
    with pytest.raises(TypeError):
        optimizer.step()
    assert torch.equal(weight, torch.ones(3))


def test_contradictions_are_torchs():
    weight = torch.nn.Parameter(torch.ones(3))
    for wrong in ({'lr': torch.tensor([0.1, 0.2])},
                  {'fused': True, 'foreach': True}):
        for kind in KINDS[0]:
            with pytest.raises((ValueError, RuntimeError)):
                kind([weight], **wrong)


def test_groups_of_an_older_torch_are_taken():
    """Whose options were fewer."""
    weight = torch.nn.Parameter(torch.ones(3))
    theirs = torch.optim.AdamW([weight])
    weight.grad = torch.ones(3)
    theirs.step()
    state = theirs.state_dict()
    for key in ('maximize', 'foreach', 'capturable', 'differentiable', 'fused',
                'decoupled_weight_decay'):
        del state['param_groups'][0][key]
    optimizer = terrace.AdamW([weight])
    optimizer.load_state_dict(state)
    optimizer.step()
    assert optimizer.state[weight]['step'] == 2


@pytest.mark.parametrize('settings', [{}, {'max_grad_norm': 0.5}])
def test_a_parameter_that_is_in_its_group_twice(settings):
    """torch warns and steps it twice."""
    made = []
    for kind in (terrace.AdamW, torch.optim.AdamW):
        weight, single = (torch.nn.Parameter(torch.ones(4)) for _ in range(2))
        with pytest.warns(UserWarning, match='duplicate parameters'):
            made.append(([weight, single],
                         kind([weight, single, weight], lr=0.1,
                              **(settings if kind is terrace.AdamW else {}))))
    for seed in range(3):
        torch.manual_seed(seed)
        gradients = [torch.randn(4), torch.randn(4)]
        for i, (weights, optimizer) in enumerate(made):
            for weight, gradient in zip(weights, gradients, strict=True):
                weight.grad = gradient.clone()
            if i == 1 and settings:
                torch.nn.utils.clip_grad_norm_(
                    [weights[0], weights[1], weights[0]], 0.5)
                # Which scales a gradient in place once for each time.
                norm = torch.cat([gradients[0], gradients[1],
                                  gradients[0]]).norm()
                factor = min(1.0, 0.5 / float(norm + 1e-6))
                for weight, gradient in zip(weights, gradients, strict=True):
                    weight.grad = gradient * factor
            optimizer.step()
    assert_close(made)
    state = made[0][1].state[made[0][0][0]]
    assert state['step'] == 6
    assert compiled_of(made[0][1]).steps() == [6, 3]


def test_nothing_is_warned_of_otherwise():
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        terrace.AdamW([torch.nn.Parameter(torch.ones(4))], fused=True)
