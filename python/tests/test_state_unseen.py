"""State that is written past autograd's counter: through .data, numpy, and
other tensors over its memory."""

import functools

import pytest
import torch

import drawn
import terrace
from drawn import step
from terrace._base.mark import Mark

SHAPES = ((300, 40), (7,), (1,), (40, 30))
made = functools.partial(drawn.made, SHAPES)


def through_data(state):
    state['exp_avg'].data.zero_()


def other_data(state):
    state['exp_avg'].data = torch.zeros_like(state['exp_avg'])


def through_numpy(state):
    state['exp_avg'].numpy()[:] = 0


def one_element(state):
    state['exp_avg'].numpy().reshape(-1)[-1] = 3.0


def moved_about(state):
    moment = state['exp_avg'].numpy()
    moment[:] = moment[::-1].copy()


def through_detached_data(state):
    moment = state['exp_avg_sq'].data.view(-1)
    moment[: len(moment) // 2 + 1].mul_(4)


def the_step(state):
    state['step'].data.fill_(5)


def set_by_another_library(state):
    torch.from_dlpack(state['exp_avg'].data).add_(0.5)


CHANGES = [through_data, other_data, through_numpy, one_element, moved_about,
           through_detached_data, the_step, set_by_another_library]


@pytest.mark.parametrize('change', CHANGES)
def test_is_followed_as_torch_follows_it(change, tier):
    ours, theirs = made(terrace.AdamW, **tier), made(torch.optim.AdamW)
    for weights, optimizer in (ours, theirs):
        for number in range(4):
            step(weights, optimizer, number)
            for weight in weights:
                change(optimizer.state[weight])
        copy = optimizer.state_dict()['state'][0]['exp_avg'].clone()
        step(weights, optimizer, 9)
        weights.append(copy)
    for weight, other in zip(ours[0], theirs[0], strict=True):
        torch.testing.assert_close(weight, other, rtol=1e-6, atol=1e-6)
    ours[1].close()


def test_data_of_before_a_step_is_not_replaced_unheard():
    weights, optimizer = made(terrace.AdamW)
    step(weights, optimizer, 1)
    moment = optimizer.state[weights[0]]['exp_avg']
    step(weights, optimizer, 2)
    moment.data = torch.zeros_like(moment)
    with pytest.raises(ValueError, match='take it out again'):
        step(weights, optimizer, 3)


@pytest.mark.parametrize('count', [0, 1, 2, 3, 4, 5, 131071, 131072, 300001])
def test_each_element_counts(count):
    tensor = torch.randn(count + 1)[1:]  # at no multiple of 8 bytes
    mark = Mark.of(tensor)
    assert mark.is_of(tensor)
    elements = tensor.numpy()
    for place in {0, 1, count // 2, count - 2, count - 1} & set(range(count)):
        kept = elements[place].copy()
        elements[place] += 1
        assert not mark.is_of(tensor) and mark.is_counted_of(tensor)
        elements[place] = kept
        assert mark.is_of(tensor)


@pytest.mark.parametrize('made', [
    lambda: torch.randn(30, 20).t(), lambda: torch.randn(30, 20)[:, ::2],
    lambda: torch.randn(33).double(), lambda: torch.randn(33).half(),
    lambda: torch.tensor(3.0), lambda: torch.tensor([7])])
def test_any_tensor_that_scripts_assign_has_one(made):
    tensor = made()
    mark = Mark.of(tensor)
    assert mark.is_of(tensor)
    tensor.data.view(tensor.shape)[...] = 1
    assert not mark.is_of(tensor)
