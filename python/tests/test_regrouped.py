"""State belongs to parameters: groups may be changed as torch lets them."""

import copy

import pytest
import torch

import terrace
from drawn import step
from conftest import compiled_of

SHAPES = ((4, 3), (7,), (7,), (4, 3), (2, 2, 2))
# Each step's gradients, whatever the groups are.
STEPS = 4


def reversed_lists(optimizer, _):
    for group in optimizer.param_groups:
        group['params'].reverse()


def reversed_groups(optimizer, _):
    optimizer.param_groups.reverse()


def moved(optimizer, _):
    parameter = optimizer.param_groups[0]['params'].pop(0)
    optimizer.param_groups[1]['params'].append(parameter)


def assigned(optimizer, weights):
    optimizer.param_groups = [
        {**optimizer.param_groups[1], 'params': weights[::2]},
        {**optimizer.param_groups[0], 'params': weights[1::2]}]


def cleared_and_added_again(optimizer, weights):
    optimizer.param_groups.clear()
    optimizer.add_param_group({'params': weights[::-1], 'lr': 0.05})


def one_left_out(optimizer, _):
    del optimizer.param_groups[0]['params'][-1:]


def copied(optimizer, _):
    optimizer.param_groups[:] = [{**group, 'params': list(group['params'])}
                                 for group in optimizer.param_groups]


CHANGES = [reversed_lists, reversed_groups, moved, assigned,
           cleared_and_added_again, one_left_out, copied]


def made(kind, **settings):
    torch.manual_seed(1)
    weights = [torch.nn.Parameter(torch.randn(shape)) for shape in SHAPES]
    return weights, kind([{'params': weights[:2], 'lr': 0.1},
                          {'params': weights[2:], 'weight_decay': 0.3}],
                         lr=0.02, **settings)


def compare(ours, theirs):
    (weights, optimizer), (expected, reference) = ours, theirs
    for weight, other in zip(weights, expected, strict=True):
        torch.testing.assert_close(weight, other, rtol=1e-6, atol=1e-6)
        assert (weight in optimizer.state) == (other in reference.state)
        for key in ('step', 'exp_avg', 'exp_avg_sq'):
            torch.testing.assert_close(
                optimizer.state[weight].get(key, torch.zeros(1)),
                reference.state[other].get(key, torch.zeros(1))
                if other in reference.state else torch.zeros(1),
                rtol=1e-6, atol=1e-7)
    assert len(optimizer.state) == len(reference.state)


@pytest.mark.parametrize('change', CHANGES)
def test_groups_that_changed_are_stepped_as_torchs(change, tier):
    """Before the first step, between steps, and twice."""
    for at in ((0,), (2,), (1, 3)):
        ours = made(terrace.AdamW, **tier)
        theirs = made(torch.optim.AdamW)
        for number in range(STEPS):
            for weights, optimizer in (ours, theirs):
                if number in at:
                    change(optimizer, weights)
                step(weights, optimizer, number)
        compare(ours, theirs)
        ours[1].close()


def test_what_left_the_groups_keeps_its_state_until_it_comes_back():
    ours, theirs = made(terrace.AdamW), made(torch.optim.AdamW)
    for number in range(6):
        for weights, optimizer in (ours, theirs):
            if number == 2:
                gone = optimizer.param_groups[1]['params'].pop(1)
                assert gone is weights[3]
            if number == 4:
                optimizer.param_groups[0]['params'].insert(0, weights[3])
            step(weights, optimizer, number)
        compare(ours, theirs)
    assert ours[1].state[ours[0][3]]['step'] == 4


def test_a_parameter_that_took_anothers_place_has_no_state():
    """As Accelerate exchanges them, in a list of its own or in place."""
    first, second, third = (torch.nn.Parameter(torch.zeros(3))
                            for _ in range(3))
    optimizer = terrace.AdamW([first])
    first.grad = torch.ones(3)
    optimizer.step()
    view = optimizer.state
    optimizer.param_groups[0]['params'] = [second]
    assert first in view and second not in view and view[second] == {}
    before = first.detach().clone()
    second.grad = torch.ones(3)
    optimizer.step()
    assert torch.equal(first, before)
    assert view[second]['step'] == 1
    optimizer.param_groups[0]['params'][0] = third
    third.grad = torch.ones(3)
    optimizer.step()
    assert torch.equal(third, second) and list(view) == [first, second, third]


def test_a_module_that_exchanged_its_tensors_keeps_the_state():
    """torch.utils.swap_tensors: another tensor behind the same object."""
    weight, expected = (torch.nn.Parameter(torch.ones(4)) for _ in range(2))
    optimizer = terrace.AdamW([weight], lr=0.1)
    reference = torch.optim.AdamW([expected], lr=0.1)
    for number in range(4):
        for parameter, kind in ((weight, optimizer), (expected, reference)):
            if number == 2:
                parameter.grad = None
                torch.utils.swap_tensors(
                    parameter, torch.nn.Parameter(parameter.detach() + 1))
            torch.manual_seed(number)
            parameter.grad = torch.randn(4)
            kind.step()
    torch.testing.assert_close(weight, expected)
    assert optimizer.state[weight]['step'] == 4


def test_one_parameter_in_two_groups_is_refused():
    weights, optimizer = made(terrace.AdamW)
    optimizer.param_groups[1]['params'].append(weights[0])
    before = [weight.detach().clone() for weight in weights]
    with pytest.raises(ValueError, match='in two groups'):
        step(weights, optimizer, 1)
    assert all(map(torch.equal, weights, before))
    optimizer.param_groups[1]['params'].pop()
    step(weights, optimizer, 1)
    assert len(optimizer.state) == len(weights)


def test_groups_that_changed_are_saved_and_loaded(tier):
    """As Lightning's BaseFinetuning resumes: it assigns groups with parameters
    that the new optimizer has not seen, and loads the state then."""
    weights, optimizer = made(terrace.AdamW, **tier)
    step(weights, optimizer, 0)
    added = [torch.nn.Parameter(torch.ones(5)), torch.nn.Parameter(
        torch.ones(3))]
    optimizer.add_param_group({'params': added, 'lr': 0.5})
    step([*weights, *added], optimizer, 1)
    saved = copy.deepcopy(optimizer.state_dict())
    values = [weight.detach().clone() for weight in (*weights, *added)]
    groups = [{**group} for group in optimizer.param_groups]
    step([*weights, *added], optimizer, 2)
    expected = [weight.detach().clone() for weight in (*weights, *added)]
    optimizer.close()

    resumed = terrace.AdamW(weights[:1], **tier)
    resumed.param_groups = groups
    with torch.no_grad():
        for weight, value in zip((*weights, *added), values, strict=True):
            weight.copy_(value)
    resumed.load_state_dict(saved)
    step([*weights, *added], resumed, 2)
    for weight, value in zip((*weights, *added), expected, strict=True):
        assert torch.equal(weight, value)
    assert len(compiled_of(resumed).steps()) == len(expected)
    resumed.close()


def cast_before_the_first_step(kind, to, **settings):
    torch.manual_seed(1)
    module = torch.nn.Linear(300, 40)
    optimizer = kind(module.parameters(), lr=0.01, **settings)
    module.to(to)
    for number in range(3):
        step(list(module.parameters()), optimizer, number)
    return module, optimizer


@pytest.mark.parametrize('to', [torch.bfloat16, torch.float16])
def test_a_module_that_is_cast_after_the_optimizer_was_made(to, tier):
    """As Fabric's setup() does; as if it had been cast before."""
    module, optimizer = cast_before_the_first_step(terrace.AdamW, to, **tier)
    torch.manual_seed(1)
    other = torch.nn.Linear(300, 40).to(to)
    made_later = terrace.AdamW(other.parameters(), lr=0.01)
    for number in range(3):
        step(list(other.parameters()), made_later, number)
    for weight, expected in zip(module.parameters(), other.parameters(),
                                strict=True):
        assert weight.dtype == to and torch.equal(weight, expected)
    assert optimizer.stats()['state_bytes'] == 12 * 40 * 301
    optimizer.close()


def test_a_module_that_is_cast_with_state_says_what_to_do():
    module = torch.nn.Linear(4, 2, bias=False)
    optimizer = terrace.AdamW(module.named_parameters())
    step([module.weight], optimizer, 1)
    module.bfloat16()
    with pytest.raises(ValueError, match=r"'weight' was \[2, 4\] of float32 "
                       r'and is \[2, 4\] of bfloat16; after `del optim'):
        step([module.weight], optimizer, 2)
    del optimizer.state[module.weight]
    step([module.weight], optimizer, 2)
    assert optimizer.state[module.weight]['step'] == 1


def test_a_changed_parameter_is_named():
    w = torch.nn.Parameter(torch.zeros(3))
    optimizer = terrace.AdamW([w])
    w.grad = torch.zeros(3)
    optimizer.step()
    w.data = torch.zeros(4)
    w.grad = torch.zeros(4)
    with pytest.raises(ValueError, match=r'was \[3\] of float32 and is \[4\]'):
        optimizer.step()


def test_an_equal_parameter_is_another():
    """Lists of tensors of one element may be compared by their values."""
    weights = [torch.nn.Parameter(torch.ones(1)) for _ in range(3)]
    optimizer = terrace.AdamW(weights, lr=0.1)

    def step(parameters):
        for parameter in parameters:
            parameter.grad = torch.ones(1)
        optimizer.step()

    step(weights)
    gone, other = weights[1], torch.nn.Parameter(weights[1].detach().clone())
    optimizer.param_groups[0]['params'][1] = other
    left = gone.detach().clone()
    step([*weights, other])
    assert torch.equal(gone, left)
    assert not torch.equal(other, left)
    assert optimizer.state[other]['step'] == 1
