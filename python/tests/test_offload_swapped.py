"""torch.utils.swap_tensors, and what does so with
torch.__future__.set_swap_module_params_on_conversion, of an offloaded model."""

import gc
import weakref

import pytest
import torch

import terrace
from offloaded import mlp, mlp_loss, sgd, values

SWAPS = {
    'load_state_dict': lambda model: model.load_state_dict(
        mlp(seed=9).state_dict()),
    'load_state_dict with assign': lambda model: model.load_state_dict(
        mlp(seed=9).state_dict(), assign=True),
    'to': lambda model: model.to(torch.float64),
    'bfloat16': lambda model: model.bfloat16(),
    'to and back': lambda model: model.to(torch.float64).to(torch.float32),
    'one': lambda model: torch.utils.swap_tensors(
        model[4].weight, torch.nn.Parameter(mlp(seed=9)[4].weight.detach())),
    'two of it': lambda model: torch.utils.swap_tensors(model[0].weight,
                                                        model[4].weight),
    'one twice': lambda model: [torch.utils.swap_tensors(
        model[4].weight, torch.nn.Parameter(mlp(seed=seed)[4].weight.detach()))
        for seed in (9, 10)],
}


@pytest.fixture(autouse=True)
def swapping():
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(False)


def losses(model, make=sgd, steps=2):
    generator = torch.Generator().manual_seed(5)
    optimizer = make(model.parameters())
    left = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = mlp_loss(model, generator)
        loss.backward()
        optimizer.step()
        left.append(loss.detach().clone())
    return left


def same(ours, theirs):
    ours, theirs = values(ours), values(theirs)
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert torch.equal(ours[name], value), name


@pytest.mark.parametrize('budget', ['30%', '100%'])
@pytest.mark.parametrize('swap', SWAPS)
def test_the_values_are_those_of_a_model_in_memory(tmp_path, swap, budget):
    model, plain = mlp(), mlp()
    with terrace.offload(model, memory_budget=budget, nvme_path=tmp_path):
        assert losses(model) == losses(plain)
        model.zero_grad(), plain.zero_grad()
        for each in (model, plain):
            SWAPS[swap](each)
        same(model, plain)
        assert losses(model) == losses(plain)
        same(model, plain)
    same(model, plain)


@pytest.mark.parametrize('swap', ['load_state_dict', 'one', 'two of it'])
def test_beside_an_optimizer_that_joins(tmp_path, swap):
    model, plain = mlp(), mlp()
    offload = terrace.offload(model, memory_budget='30%', nvme_path=tmp_path)
    optimizers = {}

    def joined(parameters):
        return optimizers.setdefault(
            'ours', terrace.AdamW(parameters, lr=1e-2, offload=offload))

    def alone(parameters):
        return optimizers.setdefault('theirs',
                                     terrace.AdamW(parameters, lr=1e-2))

    assert losses(model, joined) == losses(plain, alone)
    offload.flush()
    for each in optimizers.values():
        each.zero_grad()
    for each in (model, plain):
        SWAPS[swap](each)
    same(model, plain)
    offload.close()
    same(model, plain)


def test_what_the_program_refers_to_is_torchs_to_refuse(tmp_path):
    model = mlp()
    with terrace.offload(model, memory_budget='30%', nvme_path=tmp_path):
        kept = weakref.ref(model[4].weight)
        with pytest.raises(RuntimeError, match='weakref'):
            SWAPS['one'](model)
        assert kept() is model[4].weight
        same(model, mlp())
    same(model, mlp())


def test_it_is_closed_with_its_last_parameter_all_the_same(tmp_path):
    model = mlp()
    terrace.offload(model, memory_budget='30%', nvme_path=tmp_path)
    SWAPS['load_state_dict'](model)
    assert any(tmp_path.iterdir())
    del model
    gc.collect()
    assert not any(tmp_path.iterdir())


def test_torchs_own_is_back_afterwards(tmp_path):
    own = torch.utils.swap_tensors
    model = mlp()
    with terrace.offload(model, memory_budget='30%', nvme_path=tmp_path):
        SWAPS['one'](model)
    assert torch.utils.swap_tensors is own
