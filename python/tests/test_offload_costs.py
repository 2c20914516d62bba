"""What each step of an offloaded model costs beside its operations."""

import json
import time

import pytest
import torch

import terrace
from offloaded import mlp, mlp_loss


@pytest.fixture
def parsed(monkeypatch):
    """How often JSON was parsed, as all statistics are."""
    counts = []
    loads = json.loads

    def counted(*arguments, **named):
        counts.append(1)
        return loads(*arguments, **named)

    monkeypatch.setattr(json, 'loads', counted)
    return counts


@pytest.mark.parametrize('activations', [False, True])
@pytest.mark.parametrize('overlap', [False, True])
def test_a_step_makes_no_statistics(tmp_path, parsed, activations, overlap):
    model = mlp(12)
    with terrace.offload(model, memory_budget='60%', nvme_path=str(tmp_path),
                         activations=activations) as offload:
        optimizer = terrace.AdamW(model.parameters(), overlap=overlap)

        def step(seed):
            mlp_loss(model, torch.Generator().manual_seed(seed)).backward()
            optimizer.step()
            optimizer.zero_grad()

        for seed in range(3):
            step(seed)
        del parsed[:]
        for seed in range(5):
            step(seed)
            optimizer.flush()
            offload.flush()
        assert not parsed
        assert offload.stats()['steps'] == 8


def gradients_are_the_same(kept, steps):
    plain = mlp(12)
    for seed in range(steps):
        plain.zero_grad()
        mlp_loss(plain, torch.Generator().manual_seed(seed)).backward()
        yield all(torch.equal(mine, p.grad) for mine, p
                  in zip(kept[seed], plain.parameters(), strict=True))


def test_gradients_that_are_kept_have_their_values(tmp_path):
    model = mlp(12)
    with terrace.offload(model, memory_budget='40%', nvme_path=str(tmp_path)):
        optimizer = terrace.AdamW(model.parameters(), lr=0.0, weight_decay=0.0)
        kept = []
        for seed in range(12):
            mlp_loss(model, torch.Generator().manual_seed(seed)).backward()
            optimizer.step()
            kept.append([p.grad for p in model.parameters()])
            optimizer.zero_grad()
        assert all(gradients_are_the_same(kept, 12))


@pytest.mark.alone
def test_another_gradient_costs_the_same_however_many_are_kept(tmp_path):
    """The least of some steps' time: what runs beside the test counts less."""
    model = mlp(12)
    with terrace.offload(model, memory_budget='40%', nvme_path=str(tmp_path)):
        optimizer = terrace.AdamW(model.parameters())
        kept, times = [], []
        for seed in range(120):
            loss = mlp_loss(model, torch.Generator().manual_seed(seed))
            begun = time.perf_counter()
            loss.backward()
            times.append(time.perf_counter() - begun)
            optimizer.step()
            kept.append([p.grad for p in model.parameters()])
            optimizer.zero_grad()
    assert min(times[-15:]) < 2.5 * min(times[3:15]), times
