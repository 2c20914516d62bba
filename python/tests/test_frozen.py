"""Frozen parameters have no state until their first gradient."""

import pytest
import torch

import terrace
from conftest import largest_difference
from crew import bits

FROZEN, TRAINED = 40_000, 1_000


def lora(seed=1, dtype=torch.float32):
    """A large frozen layer with a small trained one beside it."""
    torch.manual_seed(seed)
    network = torch.nn.ParameterDict({
        'base': torch.nn.Parameter(torch.randn(FROZEN, dtype=dtype)),
        'adapter': torch.nn.Parameter(torch.randn(TRAINED, dtype=dtype))})
    network['base'].requires_grad_(False)
    return network


def step(network, optimizer, number):
    torch.manual_seed(number)
    for weight in network.values():
        gradient = torch.randn(weight.shape).to(weight.dtype)
        weight.grad = gradient if weight.requires_grad else None
    optimizer.step()


def test_only_what_is_trained_is_counted(caplog):
    network = lora()
    optimizer = terrace.AdamW(network.parameters())
    assert optimizer.stats()['state_bytes'] == 8 * TRAINED
    with caplog.at_level('INFO', logger='terrace'):
        step(network, optimizer, 1)
    assert '1,000 parameters, 8.0 kB' in caplog.text
    assert optimizer.stats()['parameters'] == TRAINED
    assert list(optimizer.state) == [network['adapter']]
    assert len(optimizer.state_dict()['state']) == 1


def test_nothing_is_reserved_on_disk_for_what_is_frozen(tmp_path):
    network = torch.nn.ParameterDict({
        'base': torch.nn.Parameter(torch.zeros(20_000_000),
                                   requires_grad=False),
        'adapter': torch.nn.Parameter(torch.zeros(200_000))})
    optimizer = terrace.AdamW(network.parameters(), memory_budget='512KiB',
                              nvme_path=str(tmp_path))
    step(network, optimizer, 1)
    stats = optimizer.stats()
    assert 0 < stats['disk_bytes'] < 4_000_000
    assert stats['memory_bytes'] <= 512 << 10


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_state_comes_with_the_first_gradient(tier, dtype):
    """Unfrozen after two steps; as one that never was in the groups before,
    bit for bit."""
    network, other = lora(dtype=dtype), lora(dtype=dtype)
    optimizer = terrace.AdamW(network.parameters(), **tier)
    whole = terrace.AdamW([other['adapter']])
    for number in range(5):
        if number == 2:
            network['base'].requires_grad_(True)
            other['base'].requires_grad_(True)
            whole.add_param_group({'params': [other['base']]})
        step(network, optimizer, number)
        step(other, whole, number)
    assert bits(network.values()) == bits(other.values())
    assert optimizer.state[network['base']]['step'] == 3
    assert optimizer.state[network['adapter']]['step'] == 5


def test_all_may_be_frozen_at_first():
    network = lora()
    network['adapter'].requires_grad_(False)
    optimizer = terrace.AdamW(network.parameters())
    optimizer.step()
    assert optimizer.stats()['state_bytes'] == 0 and not optimizer.state
    network['adapter'].requires_grad_(True)
    reference = lora()
    theirs = torch.optim.AdamW(reference.parameters())
    step(network, optimizer, 1)
    step(reference, theirs, 1)
    assert largest_difference(network, reference) < 1e-6
    assert optimizer.stats()['parameters'] == TRAINED


@pytest.mark.parametrize('unfrozen', ['before', 'after'])
def test_a_checkpoint_resumes(tier, tmp_path, unfrozen):
    """Saved when `base` was trained already, or not yet; loaded into an
    optimizer that was made with it frozen."""
    network = lora()
    optimizer = terrace.AdamW(network.parameters(), **tier)
    step(network, optimizer, 0)
    if unfrozen == 'before':
        network['base'].requires_grad_(True)
        step(network, optimizer, 1)
    terrace.save(tmp_path / 'run', network, optimizer)
    network['base'].requires_grad_(True)
    step(network, optimizer, 2)
    expected = bits(network.values())
    optimizer.close()
    other = lora(seed=2)
    resumed = terrace.AdamW(other.parameters(), **tier)
    terrace.load(tmp_path / 'run', other, resumed)
    other['base'].requires_grad_(True)
    step(other, resumed, 2)
    assert bits(other.values()) == expected
    resumed.close()


def test_a_checkpoint_without_its_state_loads_into_one_that_has_room(tmp_path):
    network = lora()
    optimizer = terrace.AdamW(network.parameters())
    step(network, optimizer, 0)
    terrace.save(tmp_path / 'run', network, optimizer)
    network['base'].requires_grad_(True)
    step(network, optimizer, 1)
    expected = bits(network.values())
    other = lora(seed=2)
    other['base'].requires_grad_(True)
    resumed = terrace.AdamW(other.parameters())
    step(other, resumed, 7)  # what it has is forgotten
    terrace.load(tmp_path / 'run', other, resumed)
    assert other['base'] not in resumed.state
    step(other, resumed, 1)
    assert bits(other.values()) == expected


def test_a_state_dict_of_a_trained_one_is_taken(tier):
    network, other = lora(), lora(seed=2)
    network['base'].requires_grad_(True)
    optimizer = terrace.AdamW(network.parameters())
    step(network, optimizer, 0)
    resumed = terrace.AdamW(other.parameters(), **tier)
    resumed.load_state_dict(optimizer.state_dict())
    assert torch.equal(resumed.state[other['base']]['exp_avg'],
                       optimizer.state[network['base']]['exp_avg'])
