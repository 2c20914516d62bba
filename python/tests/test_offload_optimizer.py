"""terrace.AdamW over parameters that are offloaded."""

import os

import pytest
import torch

import terrace
from offloaded import (check_equal_values, check_identical, check_same, mlp,
                       mlp_loss, sgd, token_loss, train, transformer, values)


@pytest.fixture(params=['joined', 'state in memory', 'state below'])
def make(request, tmp_path):
    where = {}
    if request.param == 'state in memory':
        where = {'memory_budget': '1GiB'}
    if request.param == 'state below':
        (tmp_path / 'state').mkdir()
        where = {'memory_budget': '30%', 'nvme_path': str(tmp_path / 'state')}
    return lambda parameters: terrace.AdamW(parameters, lr=1e-2,
                                            max_grad_norm=0.05, **where)


def test_an_mlp(tmp_path, make):
    check_identical(mlp, lambda m: train(m, mlp_loss, make), tmp_path)


def test_three_steps_with_a_third_of_the_bytes(tmp_path, make):
    for optimizer in (make, sgd):
        stats = check_identical(
            lambda: mlp(12), lambda m: train(m, mlp_loss, optimizer, steps=3),
            tmp_path, '33%')
        own = stats['budget_bytes'] - stats['joined_bytes']
        assert own <= stats['parameter_bytes'] / 3
        # A joined optimizer adds for gradients and state, 12 bytes to 4.
        assert stats['joined_bytes'] <= stats['parameter_bytes'] * 1.05
        assert stats['window_peak_bytes'] <= stats['window_bytes']
        assert stats['bytes_read'] > 3 * stats['parameter_bytes']


def test_a_transformer(tmp_path, make):
    check_identical(transformer, lambda m: train(m, token_loss, make, micro=2),
                    tmp_path)


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_16_bit_parameters(tmp_path, make, dtype):
    check_identical(lambda: mlp(12, dtype), lambda m: train(m, mlp_loss, make),
                    tmp_path)


def test_views_of_one_storage_and_odd_strides(tmp_path, make):
    class Odd(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            whole = torch.randn(2, 128, 128) / 16
            self.first = torch.nn.Parameter(whole[0])
            self.second = torch.nn.Parameter(whole[1].T)
            self.rest = mlp(4)

        def forward(self, inputs):
            return self.rest(inputs @ self.first @ self.second)

    check_identical(Odd, lambda m: train(m, mlp_loss, make), tmp_path, '80%')


def test_parameters_that_overlap_are_refused(tmp_path):
    whole = torch.randn(3, 128)
    model = torch.nn.Module()
    model.first = torch.nn.Parameter(whole[:2])
    model.second = torch.nn.Parameter(whole[1:])
    with terrace.offload(model):
        with pytest.raises(ValueError, match='overlap in memory'):
            terrace.AdamW(model.parameters())


def test_an_optimizer_from_before_until_after(tmp_path, make):
    def run(model, directory=None):
        optimizer = make(model.parameters())
        left = train(model, mlp_loss, lambda _: optimizer)
        offload = directory and terrace.offload(
            model, memory_budget='40%', nvme_path=str(directory))
        left += train(model, mlp_loss, lambda _: optimizer)
        if offload:
            assert offload.stats()['fetches'] > 0
            offload.close()
        return left + train(model, mlp_loss, lambda _: optimizer)

    model, plain = mlp(), mlp()
    check_same(run(model, tmp_path), run(plain))
    check_equal_values(values(model), values(plain))


def test_a_checkpoint_of_both(tmp_path, make):
    expected = mlp()
    expected_losses = train(expected, mlp_loss, make)
    model = mlp()
    (tmp_path / 'parameters').mkdir()
    with terrace.offload(model, memory_budget='40%',
                         nvme_path=str(tmp_path / 'parameters')):
        optimizer = make(model.parameters())
        check_same(train(model, mlp_loss, lambda _: optimizer),
                   expected_losses)
        terrace.save(tmp_path / 'checkpoint', model, optimizer)
        saved = values(model)
        later = train(model, mlp_loss, lambda _: optimizer)
        terrace.load(tmp_path / 'checkpoint', model, optimizer)
        check_equal_values(values(model), saved)
        check_same(train(model, mlp_loss, lambda _: optimizer), later)
    assert os.listdir(tmp_path / 'parameters') == []
    check_equal_values(saved, values(expected))
