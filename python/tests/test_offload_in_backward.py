"""step_in_backward of an AdamW that joins an offloaded model."""

import pytest
import torch

import terrace
from offloaded import (check_equal_values, check_identical, check_same, mlp,
                       mlp_loss, token_loss, train, transformer, values)


def in_backward(passes=1):
    def make(parameters):
        return terrace.AdamW(parameters, lr=1e-2, step_in_backward=passes)
    return make


def in_step(parameters):
    return terrace.AdamW(parameters, lr=1e-2)


def test_it_joins_and_takes_the_gradients(tmp_path):
    plain = mlp(12)
    expected = train(plain, mlp_loss, in_step)
    model = mlp(12)
    with terrace.offload(model, memory_budget='40%',
                         nvme_path=str(tmp_path)) as offload:
        tensors = offload.stats()['managed_tensors']
        optimizer = terrace.AdamW(model.parameters(), lr=1e-2,
                                  step_in_backward=1, offload=offload)
        assert offload.stats()['joined_bytes'] > 0
        mlp_loss(model, torch.Generator().manual_seed(1)).backward()
        # None was kept, here or below.
        assert all(p.grad is None for p in model.parameters())
        assert offload.stats()['managed_tensors'] == tensors
        optimizer.step()
        optimizer.close()
    model = mlp(12)
    with terrace.offload(model, memory_budget='40%',
                         nvme_path=str(tmp_path)) as offload:
        check_same(train(model, mlp_loss, in_backward()), expected)
        stats = offload.stats()
        assert stats['memory_peak_bytes'] <= stats['budget_bytes']
        assert stats['over_budget_bytes'] == 0
        assert stats['bytes_written'] > 0
    check_equal_values(values(model), values(plain))


@pytest.mark.parametrize('budget', ['448KiB', '1MiB'])
def test_a_budget_in_bytes(tmp_path, budget):
    plain = mlp(12)
    expected = train(plain, mlp_loss, in_step)
    model = mlp(12)
    with terrace.offload(model, memory_budget=budget,
                         nvme_path=str(tmp_path)) as offload:
        check_same(train(model, mlp_loss, in_backward()), expected)
        stats = offload.stats()
        assert stats['memory_peak_bytes'] <= stats['budget_bytes']
    check_equal_values(values(model), values(plain))


def test_the_least_budget_is_enough(tmp_path):
    with pytest.raises(ValueError, match='minimum of') as raised:
        terrace.offload(mlp(12), memory_budget=4096, nvme_path=str(tmp_path))
    least = int(str(raised.value).split('minimum of ')[1].split(':')[0])
    model = mlp(12)
    offload = terrace.offload(model, memory_budget=least,
                              nvme_path=str(tmp_path))
    with pytest.raises(ValueError, match='minimum of') as raised:
        in_backward()(model.parameters())
    offload.close()
    least = int(str(raised.value).split('minimum of ')[1].split()[0])
    plain, model = mlp(12), mlp(12)
    with terrace.offload(model, memory_budget=least, nvme_path=str(tmp_path)):
        check_same(train(model, mlp_loss, in_backward()),
                   train(plain, mlp_loss, in_step))
    check_equal_values(values(model), values(plain))


def test_gradients_of_several_passes(tmp_path):
    def run(model, make):
        optimizer = make(model.parameters())
        for step in range(3):
            for part in range(2):
                generator = torch.Generator().manual_seed(7 * step + part)
                mlp_loss(model, generator).backward()
            optimizer.step()
            optimizer.zero_grad()
        return [value.clone() for value in model.parameters()]

    plain = mlp(12)
    expected = run(plain, in_step)
    model = mlp(12)
    with terrace.offload(model, memory_budget='40%', nvme_path=str(tmp_path)):
        check_same(run(model, in_backward(2)), expected)


@pytest.mark.parametrize('recompute', [None, 'other', 're-entrant'])
def test_a_transformer(tmp_path, recompute):
    check_identical(
        lambda: transformer(recompute),
        lambda m: train(m, token_loss,
                        lambda p: in_backward()([each for each in p
                                                 if each.requires_grad])),
        tmp_path)


def test_one_after_another_that_took_gradients_below(tmp_path):
    model = mlp(12)
    with terrace.offload(model, memory_budget='40%', nvme_path=str(tmp_path)):
        first = in_step(model.parameters())
        train(model, mlp_loss, lambda _: first)
        first.close()
        plain = mlp(12)
        plain.load_state_dict({name: value.clone() for name, value
                               in model.state_dict().items()})
        check_same(train(model, mlp_loss, in_backward()),
                   train(plain, mlp_loss, in_step))
    check_equal_values(values(model), values(plain))


def test_after_the_model_was_closed_backward_is_torchs_own(tmp_path):
    model = mlp(12)
    with terrace.offload(model, memory_budget='40%', nvme_path=str(tmp_path)):
        optimizer = in_backward()(model.parameters())
        train(model, mlp_loss, lambda _: optimizer)
    mlp_loss(model, torch.Generator().manual_seed(1)).backward()
    assert all(p.grad is not None for p in model.parameters())
    with pytest.raises(RuntimeError, match='closed'):
        optimizer.step()
