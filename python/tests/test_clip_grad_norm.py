"""terrace.clip_grad_norm_ over ordinary parameters is torch's own, one gradient
at a time. Over offloaded ones: test_offload_gradients.py."""

import math

import pytest
import torch

import terrace

INFINITY = float('inf')


def parameters(dtype=torch.float32, seed=1, empty=((2, 0),)):
    generator = torch.Generator().manual_seed(seed)
    found = []
    for shape in ((3, 5), (7,), (), *empty, (4, 4)):
        parameter = torch.nn.Parameter(torch.zeros(shape, dtype=dtype))
        parameter.grad = torch.randn(shape, generator=generator).to(dtype)
        found.append(parameter)
    found.append(torch.nn.Parameter(torch.zeros(3)))  # without a gradient
    return found


def both(make, *arguments, **named):
    ours, theirs = make(), make()
    mine = terrace.clip_grad_norm_(ours, *arguments, **named)
    other = torch.nn.utils.clip_grad_norm_(theirs, *arguments,
                                           **{**named, 'foreach': False})
    assert mine.dtype == other.dtype and mine.shape == other.shape
    assert torch.equal(mine, other) or (mine.isnan() and other.isnan())
    for left, right in zip(ours, theirs):
        if right.grad is None:
            assert left.grad is None
        else:
            assert torch.equal(left.grad, right.grad) or (
                left.grad.isnan().equal(right.grad.isnan()))
    return mine


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16,
                                   torch.float16, torch.float64])
@pytest.mark.parametrize('norm_type', [2.0, 1.0, INFINITY, 3, 0.5])
@pytest.mark.parametrize('max_norm', [0.1, 1e6, 1])
def test_bit_for_bit(dtype, norm_type, max_norm):
    # Of no elements torch knows no largest one.
    empty = () if norm_type == INFINITY else ((2, 0),)
    both(lambda: parameters(dtype, empty=empty), max_norm, norm_type)


def test_of_several_dtypes():
    both(lambda: parameters() + parameters(torch.bfloat16, 2)
         + parameters(torch.float64, 3), 0.5)


@pytest.mark.parametrize('bad', [INFINITY, -INFINITY, math.nan])
def test_what_is_not_finite(bad):
    def make():
        found = parameters()
        found[1].grad[2] = bad
        return found

    assert not both(make, 0.5).isfinite()
    found = make()
    before = [None if p.grad is None else p.grad.clone() for p in found]
    with pytest.raises(RuntimeError, match='non-finite'):
        terrace.clip_grad_norm_(found, 0.5, error_if_nonfinite=True)
    for parameter, gradient in zip(found, before):
        if gradient is not None:
            assert torch.equal(parameter.grad.isnan(), gradient.isnan())
            assert torch.equal(parameter.grad.nan_to_num(),
                               gradient.nan_to_num())


def test_one_tensor_a_generator_and_none():
    found = parameters()
    expected = torch.nn.utils.clip_grad_norm_(parameters()[0], 0.1)
    assert torch.equal(terrace.clip_grad_norm_(found[0], 0.1), expected)
    both(lambda: parameters(), 0.1, foreach=True)
    generator = (p for p in parameters())
    assert torch.equal(
        terrace.clip_grad_norm_(generator, 0.1),
        torch.nn.utils.clip_grad_norm_(parameters(), 0.1, foreach=False))
    assert terrace.clip_grad_norm_([], 0.1) == 0
    with pytest.warns(UserWarning, match='no parameters at all'):
        assert terrace.clip_grad_norm_(generator, 0.1) == 0


def test_what_needs_no_clipping_is_not_written():
    found = parameters()
    versions = [p.grad._version for p in found if p.grad is not None]
    assert terrace.clip_grad_norm_(found, 1e6) < 1e6
    assert versions == [p.grad._version for p in found if p.grad is not None]
