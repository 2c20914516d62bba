"""A program's default dtype says nothing of the optimizer's counts."""

import contextlib

import pytest
import torch

import terrace

STEPS = 257  # one more than bfloat16 counts to


@contextlib.contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def stepped(make, steps=STEPS, **options):
    parameters = [torch.nn.Parameter(torch.ones(4, dtype=dtype))
                  for dtype in (torch.float32, torch.bfloat16)]
    optimizer = make(parameters, lr=1e-3, **options)
    for _ in range(steps):
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    return parameters, optimizer


def counted(optimizer, parameters, how, tmp_path):
    if how == 'a key':
        return [optimizer.state[p]['step'] for p in parameters]
    if how == 'all keys':
        return [dict(optimizer.state[p].items())['step'] for p in parameters]
    if how == 'state_dict':
        state = optimizer.state_dict()
    else:
        path = tmp_path / 'exported.pt'
        terrace.export_torch(str(path), optimizer=optimizer)
        state = torch.load(path, weights_only=True)
        state = state.get('optimizer', state)
    return [each['step'] for each in state['state'].values()]


@pytest.mark.parametrize('how', ['a key', 'all keys', 'state_dict',
                                 'export_torch'])
@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16,
                                   torch.float32, torch.float64])
def test_steps_are_counted_as_torch_counts(tmp_path, tier, dtype, how):
    parameters, optimizer = stepped(terrace.AdamW, **tier)
    with default_dtype(dtype):
        theirs, reference = stepped(torch.optim.AdamW)
        for step, parameter in zip(
                counted(optimizer, parameters, how, tmp_path), theirs):
            expected = reference.state[parameter]['step']
            assert step.dtype == expected.dtype and step.item() == STEPS


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_a_whole_run_is_that_of_float32(tier, dtype):
    expected, _ = stepped(terrace.AdamW, 20, **tier)
    with default_dtype(dtype):
        parameters, optimizer = stepped(terrace.AdamW, 20, **tier)
        state = optimizer.state_dict()
        again, other = stepped(terrace.AdamW, 0, **tier)
        other.load_state_dict(state)
        assert [other.state[p]['step'].item() for p in again] == [20, 20]
    for one, two in zip(parameters, expected):
        assert torch.equal(one, two)
