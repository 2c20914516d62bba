"""What an offloaded model says of the seconds that operations waited."""

import pytest
import torch

import terrace
from offloaded import mlp, mlp_loss, train
from terrace._offload.offload import longest_by_module


def adamw(parameters):
    return terrace.AdamW(parameters, lr=1e-2)


def test_the_ten_modules_that_were_waited_for_longest(tmp_path):
    model = mlp(24)
    with terrace.offload(model, memory_budget='1%',
                         nvme_path=str(tmp_path)) as offload:
        train(model, mlp_loss, adamw)
        by_tensor = offload._managed.stats()['blocked_tensors']
        stats = offload.stats()
    told = stats['blocked_modules']
    names = {name for name, _ in model.named_modules()}
    assert len(told) == 10 and told.keys() <= names | {'gradients'}
    assert list(told.values()) == sorted(told.values(), reverse=True)
    assert all(seconds > 0 for seconds in told.values())
    for name in names - told.keys():
        mine = sum(by_tensor.get(f'{name}.{kind}', 0.0)
                   for kind in ('weight', 'bias'))
        assert mine <= min(told.values())
    assert sum(told.values()) <= sum(stats['blocked_seconds'].values())


@pytest.mark.parametrize('activations', [False, True])
def test_where_they_are_few_they_are_all(tmp_path, activations):
    """With gradients, of steps that are over too."""
    model = mlp(4)
    with terrace.offload(model, memory_budget='448KiB', activations=activations,
                         activations_above='4KiB',
                         nvme_path=str(tmp_path)) as offload:
        optimizer = adamw(model.parameters())
        for _ in range(4):
            inputs = torch.randn(64, 128)
            for _ in range(2):  # sums of gradients that are below
                model(inputs).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        optimizer.flush()
        stats = offload.stats()
    told = stats['blocked_modules']
    assert {'0', '2', '4', '6'} <= told.keys()
    assert told['gradients'] > 0
    assert ('activations' in told) == activations
    assert sum(told.values()) == pytest.approx(
        sum(stats['blocked_seconds'].values()))


def test_names():
    assert longest_by_module(
        {'weight': 1.0, 'a.b.weight': 0.5, 'a.b.bias': 0.25, 'a.weight': 3.0,
         'activations.saved': 0.125, 'group 0 parameter 3.grad': 0.25,
         'a.b.bias.grad 4': 0.125}, 10.0) == {
             'gradients': 5.125, 'a': 3.0, '': 1.0, 'a.b': 0.75,
             'activations': 0.125}
    assert longest_by_module({}, 0.0) == {}
