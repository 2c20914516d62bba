"""What a program has leased leaves no room: operations go beyond the budget, and
another lease is told so."""

import contextlib

import pytest
import torch

import terrace
from offloaded import check_equal_values, mlp, values


def weights(model):
    return [layer.weight for layer in model if hasattr(layer, 'weight')]


def hold_arrays(offload, model):
    held = [each.detach().numpy() for each in weights(model)[:2]]
    return lambda: held.clear()


def hold_leases(offload, model):
    held = contextlib.ExitStack()
    for each in weights(model)[:2]:
        held.enter_context(offload.lease(each))
    return held.close


def hold_capsules(offload, model):
    held = [torch.from_dlpack(each.detach()) for each in weights(model)[:2]]
    return lambda: held.clear()


@pytest.mark.parametrize('hold', [hold_arrays, hold_leases, hold_capsules])
@pytest.mark.parametrize('then', ['forward', 'close'])
def test_beside_leases_that_have_the_room_a_model_goes_beyond_it(
        tmp_path, hold, then):
    model, plain = mlp(), mlp()
    offload = terrace.offload(model, nvme_path=str(tmp_path))
    data = torch.ones(4, 128)
    let_go = hold(offload, model)
    for _ in range(2):
        assert torch.equal(model(data), plain(data))
    assert offload.stats()['over_budget_bytes'] > 0
    let_go()
    if then == 'forward':
        assert torch.equal(model(data), plain(data))
    offload.close()
    check_equal_values(values(model), values(plain))
    assert torch.equal(model(data), plain(data))


def test_arrays_of_more_than_the_budget_are_refused_and_nothing_is_lost(
        tmp_path):
    model, plain = mlp(), mlp()
    with terrace.offload(model, nvme_path=str(tmp_path)):
        with pytest.raises(MemoryError,
                           match='in use at a time takes .* the budget is'):
            _ = [each.detach().numpy() for each in model.parameters()]
        data = torch.ones(4, 128)
        assert torch.equal(model(data), plain(data))
    check_equal_values(values(model), values(plain))


def test_a_step_after_leases_is_the_plain_one(tmp_path):
    model, plain = mlp(), mlp()
    offload = terrace.offload(model, nvme_path=str(tmp_path))
    optimizer = terrace.AdamW(model.parameters(), lr=1e-3, offload=offload)
    expected = torch.optim.AdamW(plain.parameters(), lr=1e-3)
    data = torch.ones(4, 128)
    for round_ in range(3):
        with contextlib.ExitStack() as leases:
            with pytest.raises((RuntimeError, MemoryError), match='terrace: '):
                for each in weights(model):
                    leases.enter_context(offload.lease(each))
                model(data)
        for each, stepped in ((model, optimizer), (plain, expected)):
            each(data).square().mean().backward()
            stepped.step()
            stepped.zero_grad()
    offload.close()
    for ours, theirs in zip(model.parameters(), plain.parameters(),
                            strict=True):
        torch.testing.assert_close(ours, theirs)
