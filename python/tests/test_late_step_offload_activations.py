"""The late step of an offloaded model whose activations are below too."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import terrace
from offloaded import check_equal_values, mlp, mlp_loss
from terrace._offload import activations
from terrace._state.stepping import late_readers
from test_late_step_offload import BUDGETS, run


class Operations(TorchDispatchMode):
    """Those that run within it."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        self.names.append(str(function))
        return function(*arguments, **(named or {}))


def test_they_look_at_parameters_without_waiting(tmp_path, monkeypatch):
    waited = []
    wait = late_readers.await_updates
    monkeypatch.setattr(late_readers, 'await_updates',
                        lambda tensor: waited.append(tensor) or wait(tensor))
    model = mlp(24)
    with terrace.offload(model, memory_budget='33%', nvme_path=str(tmp_path),
                         activations=True, activations_above='1KiB'):
        optimizer = terrace.AdamW(model.parameters(), lr=1e-2)
        generator = torch.Generator().manual_seed(3)
        for _ in range(3):
            mlp_loss(model, generator).backward()
            optimizer.step()
            waited.clear()
            with Operations() as operations:
                list(activations._storages_of(model.parameters()))
            assert not operations.names
            mlp_loss(model, generator)
            assert not waited
            optimizer.zero_grad()
        model[0].weight.untyped_storage()[0]  # others wait
        assert len(waited) == 1


@pytest.mark.parametrize('budget', BUDGETS)
def test_bits(tmp_path, budget):
    def below(model):
        return terrace.offload(model, memory_budget=budget, activations=True,
                               activations_above='1KiB',
                               nvme_path=str(tmp_path))

    plain, parameters, state, _ = run(mlp, mlp_loss, lambda _: None, False)
    late, updated, states, stats = run(mlp, mlp_loss, below, None)
    assert all(map(torch.equal, late, plain))
    check_equal_values(updated, parameters)
    for key, each in state.items():
        check_equal_values(states[key], each)
    assert stats['activation_tensors'] > 0
