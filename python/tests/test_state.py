"""State as its users read, save and load it."""

import collections
import io

import pytest
import torch

import terrace
from conftest import (batches, compiled_of, largest_difference, model, pair,
                      train)
from terrace._base import errors
from terrace._optimizer import placement
from terrace._state import transfer


def through_a_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16,
                                   torch.float16])
def test_resumed_run_has_the_bits_of_the_uninterrupted_one(tier, dtype):
    data = batches(10, dtype=dtype)
    whole = model(dtype=dtype)
    train(whole, terrace.AdamW(whole.parameters(), **tier), data)

    first = model(dtype=dtype)
    optimizer = terrace.AdamW(first.parameters(), **tier)
    train(first, optimizer, data[:4])
    state = through_a_file(optimizer.state_dict())
    weights = through_a_file(first.state_dict())
    optimizer.close()

    second = model(dtype=dtype, seed=1)
    second.load_state_dict(weights)
    resumed = terrace.AdamW(second.parameters(), lr=123.0)
    resumed.load_state_dict(state)
    assert resumed.param_groups[0]['lr'] == 1e-3
    train(second, resumed, data[4:])
    assert largest_difference(whole, second) == 0


def test_state_dict_is_a_copy():
    network = model()
    optimizer = terrace.AdamW(network.parameters())
    train(network, optimizer, batches(1))
    state = optimizer.state_dict()
    before = state['state'][0]['exp_avg'].clone()
    train(network, optimizer, batches(1))
    assert torch.equal(state['state'][0]['exp_avg'], before)
    state['state'][0]['exp_avg'].zero_()
    assert optimizer.state[network[0].weight]['exp_avg'].abs().max() > 0


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_a_load_writes_the_state_once(tmp_path, dtype):
    def make():
        parameters = [torch.nn.Parameter(torch.zeros(count, dtype=dtype))
                      for count in [300_001, 3, 96] * 4]
        return parameters, terrace.AdamW(
            parameters, memory_budget='25%', nvme_path=str(tmp_path))

    parameters, optimizer = make()
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    state = optimizer.state_dict()
    optimizer.close()
    state['state'] = dict(reversed(state['state'].items()))
    _, other = make()
    other.load_state_dict(state)
    stats = other.stats()
    assert stats['bytes_read'] == 0
    assert 0.5 * stats['state_bytes'] < stats['bytes_written']
    assert stats['bytes_written'] <= stats['disk_bytes']


def test_torch_goes_on_where_terrace_stopped(tier):
    (network, optimizer), (other, theirs) = pair(tier, lr=2e-3,
                                                 weight_decay=0.1)
    data = batches(10)
    train(network, optimizer, data[:5])
    train(other, theirs, data[:5])
    successor = torch.optim.AdamW(network.parameters())
    successor.load_state_dict(optimizer.state_dict())
    train(network, successor, data[5:])
    train(other, theirs, data[5:])
    assert largest_difference(network, other) <= 1e-5


@pytest.mark.parametrize('fused', [False, True])
def test_terrace_goes_on_where_torch_stopped(tier, fused):
    network, other = model(), model()
    predecessor = torch.optim.AdamW(network.parameters(), lr=2e-3, fused=fused)
    theirs = torch.optim.AdamW(other.parameters(), lr=2e-3, fused=fused)
    data = batches(10)
    train(network, predecessor, data[:5])
    train(other, theirs, data[:5])
    optimizer = terrace.AdamW(network.parameters(), **tier)
    optimizer.load_state_dict(through_a_file(predecessor.state_dict()))
    for key in ('exp_avg', 'exp_avg_sq', 'step'):
        assert torch.equal(optimizer.state[network[0].weight][key],
                           predecessor.state[network[0].weight][key])
    train(network, optimizer, data[5:])
    train(other, theirs, data[5:])
    assert largest_difference(network, other) <= 1e-5


def test_moments_of_16_bit_parameters_from_torch():
    """torch keeps them in 16 bits and has no master: it is then made from the
    parameter."""
    network = model(dtype=torch.bfloat16)
    predecessor = torch.optim.AdamW(network.parameters())
    train(network, predecessor, batches(3, dtype=torch.bfloat16))
    optimizer = terrace.AdamW(network.parameters())
    optimizer.load_state_dict(predecessor.state_dict())
    weight = network[0].weight
    assert torch.equal(optimizer.state[weight]['exp_avg'],
                       predecessor.state[weight]['exp_avg'].float())
    train(network, optimizer, batches(3, dtype=torch.bfloat16))
    assert optimizer.state[weight]['step'] == 6


def test_moments_of_16_bit_parameters_are_not_cast():
    network = model(dtype=torch.bfloat16)
    optimizer = terrace.AdamW(network.parameters())
    train(network, optimizer, batches(3, dtype=torch.bfloat16))
    before = optimizer.state_dict()
    optimizer.load_state_dict(before)
    after = optimizer.state_dict()
    for i, state in before['state'].items():
        for key, value in state.items():
            assert value.dtype == torch.float32
            assert torch.equal(value, after['state'][i][key])


def test_state_is_empty_before_the_first_step():
    network = model()
    optimizer = terrace.AdamW(network.parameters())
    assert len(optimizer.state) == 0 and not optimizer.state
    assert optimizer.state[network[0].weight] == {}
    assert optimizer.state_dict()['state'] == {}
    train(network, optimizer, batches(2))
    optimizer.load_state_dict(terrace.AdamW(model().parameters()).state_dict())
    assert len(optimizer.state) == 0


def test_state_holds_what_was_stepped():
    network = model()
    network[0].bias.requires_grad_(False)
    optimizer = terrace.AdamW(network.parameters())
    train(network, optimizer, batches(2))
    assert network[0].bias not in optimizer.state
    assert set(optimizer.state) == {
        p for p in network.parameters() if p.requires_grad}
    state = optimizer.state[network[2].weight]
    assert set(state) == {'step', 'exp_avg', 'exp_avg_sq'}
    assert state['exp_avg'].shape == network[2].weight.shape


def test_state_of_non_contiguous_parameters_has_their_order():
    p = torch.nn.Parameter(torch.randn(6, 4).t())
    q = torch.nn.Parameter(p.detach().clone())
    optimizer, theirs = terrace.AdamW([p]), torch.optim.AdamW([q])
    p.grad = torch.randn(4, 6)
    q.grad = p.grad.clone()
    optimizer.step()
    theirs.step()
    torch.testing.assert_close(optimizer.state[p]['exp_avg'],
                               theirs.state[q]['exp_avg'].contiguous())


def counting(optimizer, monkeypatch):
    """Calls of the compiled optimizer, by name."""
    calls = collections.Counter()
    compiled = compiled_of(optimizer)
    native = compiled._native

    class Counted:
        def __getattr__(self, name):
            calls[name] += 1
            return getattr(native, name)

    monkeypatch.setattr(compiled, '_native', Counted())
    return calls


def test_a_copy_looks_for_the_steps_once(monkeypatch):
    weights = [torch.nn.Parameter(torch.zeros(1)) for _ in range(50)]
    optimizer = terrace.AdamW(weights)
    for weight in weights:
        weight.grad = torch.ones(1)
    optimizer.step()
    calls = counting(optimizer, monkeypatch)
    assert len(optimizer.state_dict()['state']) == 50
    assert calls['copy_states'] == 1
    view = optimizer.state
    assert len(view) == 50
    for weight in weights:
        assert weight in optimizer.state and len(optimizer.state) == 50
        assert optimizer.state[weight]['step'] == 1
    assert calls['steps'] <= 1 and calls['copy_states'] == 1
    for weight in weights:
        assert optimizer.state[weight]['exp_avg'] == weight.grad * 0.1
    assert calls['copy_states'] == 51
    optimizer.add_param_group({'params': [torch.nn.Parameter(torch.ones(2))]})
    added = optimizer.param_groups[1]['params'][0]
    assert added not in view and view[added] == {}
    added.grad = torch.ones(2)
    optimizer.step()
    assert view[added]['step'] == 1 and view[weights[0]]['step'] == 2




def test_a_copy_of_a_large_state_is_made_in_parts(tier, monkeypatch):
    network = model(dtype=torch.bfloat16)
    optimizer = terrace.AdamW(network.parameters(), **tier)
    train(network, optimizer, batches(2, dtype=torch.bfloat16))
    whole = optimizer.state_dict()['state']
    monkeypatch.setattr(transfer, '_COPIED_BYTES', 260 * 12)
    calls = counting(optimizer, monkeypatch)
    parts = optimizer.state_dict()['state']
    assert calls['copy_states'] == 5  # of 8 parameters
    assert whole.keys() == parts.keys()
    for i, state in whole.items():
        assert list(state) == ['step', 'master_param', 'exp_avg', 'exp_avg_sq']
        assert all(map(torch.equal, state.values(), parts[i].values()))


def test_counters_are_those_after_each_change():
    network = model()
    optimizer = terrace.AdamW(network.parameters())
    for step in range(1, 3):
        assert len(optimizer.state) == (8 if step > 1 else 0)
        train(network, optimizer, batches(1))
        assert optimizer.state[network[0].weight]['step'] == step
    saved = optimizer.state_dict()
    del saved['state'][1]
    optimizer.load_state_dict(saved)
    assert len(optimizer.state) == 7
    assert network[0].bias not in optimizer.state
    optimizer.close()
    assert len(optimizer.state) == 0


def break_shape(state):
    state['state'][1]['exp_avg'] = torch.zeros(3)


def break_key(state):
    del state['state'][1]['exp_avg_sq']


def break_step(state):
    state['state'][1]['step'] = torch.tensor(1.5)


def break_groups(state):
    state['param_groups'][0]['params'].pop()


def break_amsgrad(state):
    state['state'][1]['max_exp_avg_sq'] = torch.zeros(130)


@pytest.mark.parametrize('damage, text', [
    (break_shape, r"exp_avg of '0.bias' is \(3,\), not \(130,\)"),
    (break_key, "state of '0.bias' has no exp_avg_sq"),
    (break_step, "step of '0.bias' is 1.5"),
    (break_groups, "doesn't match the size"),
    (break_amsgrad, "amsgrad"),
])
def test_what_does_not_fit_changes_nothing(damage, text):
    network = model()
    optimizer = terrace.AdamW(network.named_parameters())
    train(network, optimizer, batches(2))
    before = optimizer.state_dict()
    broken = optimizer.state_dict()
    broken['param_groups'][0]['lr'] = 7.0
    damage(broken)
    with pytest.raises(ValueError, match=text):
        optimizer.load_state_dict(broken)
    after = optimizer.state_dict()
    assert after['param_groups'] == before['param_groups']
    for i, state in before['state'].items():
        assert torch.equal(state['exp_avg'], after['state'][i]['exp_avg'])


def test_large_copies_are_announced(caplog, monkeypatch):
    network = model()
    optimizer = terrace.AdamW(network.parameters())
    with caplog.at_level('INFO', logger='terrace'):
        optimizer.state_dict()
        assert not caplog.messages
        monkeypatch.setattr(placement, '_LARGE_BYTES', 1000)
        optimizer.state_dict()
    assert any('copies the state' in text for text in caplog.messages)


def test_a_default_device_does_not_take_the_state(tmp_path):
    """As of torch.set_default_device('cuda'): state stays in CPU memory."""
    network, other = model(), model()
    optimizer = terrace.AdamW(network.parameters())
    train(network, optimizer, batches(2))
    torch.set_default_device('meta')
    try:
        state = optimizer.state_dict()
        resumed = terrace.AdamW(other.parameters())
        resumed.load_state_dict(state)
        terrace.save(tmp_path / 'checkpoint', network, optimizer)
        terrace.load(tmp_path / 'checkpoint', other, resumed)
    finally:
        torch.set_default_device(None)
    for mine, its in zip(optimizer.state.values(), resumed.state.values(),
                         strict=True):
        for key, value in mine.items():
            assert value.device.type == 'cpu'
            assert torch.equal(value, its[key])


@pytest.mark.parametrize('use', ['save', 'step'])
def test_a_load_that_was_cut_off_is_not_committed(tmp_path, use):
    """As another thread may use the optimizer in the midst of one."""
    module = torch.nn.Linear(4, 2, bias=False)
    optimizer = terrace.AdamW(module.parameters())
    module.weight.grad = torch.ones(2, 4)
    optimizer.step()
    before, native = optimizer.state_dict(), compiled_of(optimizer)._native

    def write(offset):
        return native.write(0, offset, torch.empty(0), torch.ones(4),
                            torch.ones(4))

    errors.check(write(0))
    with pytest.raises(RuntimeError, match='half-way'):
        if use == 'save':
            terrace.save(tmp_path / 'run', module, optimizer)
        else:
            optimizer.step()
    for rest in (lambda: write(4), lambda: native.set_steps(1, [1])):
        with pytest.raises(RuntimeError, match='load it again'):
            errors.check(rest())
    optimizer.load_state_dict(before)
    optimizer.step()
    assert optimizer.state[module.weight]['step'] == 2
