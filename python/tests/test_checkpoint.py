"""terrace.save and terrace.load."""

import os
import subprocess
import sys

import pytest
import torch

import terrace
from conftest import batches, largest_difference, model, train


def stepped(network, optimizer, scheduler, data):
    return train(network, optimizer, data, scheduler.step)


def with_scheduler(network, **settings):
    optimizer = terrace.AdamW(network.parameters(), **settings)
    return optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
@pytest.mark.parametrize('engine', ['auto', 'threads'])
def test_resumed_run_has_the_bits_of_the_uninterrupted_one(tier, dtype, engine,
                                                           tmp_path):
    data = batches(9, dtype=dtype)
    whole = model(dtype=dtype)
    optimizer, scheduler = with_scheduler(whole)
    stepped(whole, optimizer, scheduler, data)

    first = model(dtype=dtype)
    optimizer, scheduler = with_scheduler(first, **tier, io_engine=engine)
    stepped(first, optimizer, scheduler, data[:4])
    size = terrace.save(tmp_path / 'run', first, optimizer,
                        scheduler=scheduler, values={'epoch': 3, 'at': [1, 2]})
    expected_random = torch.rand(5)
    files = sum(p.stat().st_size for p in (tmp_path / 'run').iterdir())
    assert size <= files
    optimizer.close()

    second = model(dtype=dtype, seed=1)
    optimizer, scheduler = with_scheduler(second, memory_budget='300KiB',
                                          nvme_path=str(tmp_path))
    values = terrace.load(tmp_path / 'run', second, optimizer,
                          scheduler=scheduler)
    assert values == {'epoch': 3, 'at': [1, 2]}
    assert torch.equal(torch.rand(5), expected_random)
    assert optimizer.param_groups[0]['lr'] == pytest.approx(1e-3 * 0.9 ** 4)
    stepped(second, optimizer, scheduler, data[4:])
    assert largest_difference(whole, second) == 0


def test_state_is_safetensors_by_name(tmp_path):
    from safetensors.torch import load_file
    network = model()
    optimizer = terrace.AdamW(network.parameters())
    train(network, optimizer, batches(2))
    terrace.save(tmp_path / 'run', network, optimizer)
    [state] = (tmp_path / 'run').glob('optimizer-*.safetensors')
    tensors = load_file(state)
    mine = optimizer.state[network[2].weight]
    assert torch.equal(tensors['2.weight.exp_avg'], mine['exp_avg'])
    assert torch.equal(tensors['2.weight.exp_avg_sq'], mine['exp_avg_sq'])


def test_buffers_of_any_dtype_come_back(tmp_path):
    def make():
        return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3),
                                   torch.nn.BatchNorm2d(4))
    network, other = make(), make()
    network[0].to(memory_format=torch.channels_last)
    network(torch.randn(2, 3, 8, 8))
    terrace.save(tmp_path / 'run', network)
    terrace.load(tmp_path / 'run', other)
    for name, value in network.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name
    assert other[1].num_batches_tracked == 1


@pytest.mark.parametrize('gpus', [2, 1])
def test_the_random_state_of_gpus_comes_back(gpus, tmp_path, monkeypatch):
    network = model()
    optimizer = terrace.AdamW(network.parameters())
    states = [torch.arange(16, dtype=torch.uint8) + i for i in range(2)]
    monkeypatch.setattr(torch.cuda, 'is_initialized', lambda: True)
    monkeypatch.setattr(torch.cuda, 'get_rng_state_all', lambda: states)
    terrace.save(tmp_path / 'checkpoint', network, optimizer)
    monkeypatch.setattr(torch.cuda, 'is_initialized', lambda: False)
    monkeypatch.setattr(torch.cuda, 'device_count', lambda: gpus)
    restored = []
    monkeypatch.setattr(torch.cuda, 'set_rng_state_all', restored.extend)
    terrace.load(tmp_path / 'checkpoint', network, optimizer)
    # Of as many only.
    assert len(restored) == (2 if gpus == 2 else 0)
    assert all(map(torch.equal, restored, states))


def test_another_model_is_refused_and_nothing_changes(tmp_path):
    network = model()
    optimizer = terrace.AdamW(network.parameters())
    train(network, optimizer, batches(1))
    terrace.save(tmp_path / 'run', network, optimizer)
    other = model(width=64)
    before = [p.detach().clone() for p in other.parameters()]
    with pytest.raises(ValueError, match='0.weight'):
        terrace.load(tmp_path / 'run', other,
                     terrace.AdamW(other.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(before, other.parameters()))


def test_what_is_not_there_is_said(tmp_path, odd_path):
    with pytest.raises(FileNotFoundError) as caught:
        terrace.load(odd_path / 'run', model())
    assert caught.value.filename == str(odd_path / 'run')
    with pytest.raises(FileNotFoundError) as caught:
        terrace.load(odd_path, model())
    assert caught.value.filename == str(odd_path / 'checkpoint.json')
    with pytest.raises(FileNotFoundError) as caught:
        terrace.save(odd_path / 'no' / 'run', model())
    assert caught.value.filename == str(odd_path / 'no' / 'run')
    assert caught.value.offset is None
    with pytest.raises(ValueError, match='not UTF-8'):
        terrace.save(os.fsencode(odd_path) + b'/\xff', model())
    network = model()
    terrace.save(tmp_path / 'run', network)
    with pytest.raises(ValueError, match='scheduler'):
        terrace.load(tmp_path / 'run', network, scheduler=object())


def test_an_altered_checkpoint_is_data_loss_naming_the_tensor(tmp_path):
    network = model()
    optimizer = terrace.AdamW(network.parameters())
    train(network, optimizer, batches(2))
    terrace.save(tmp_path / 'run', network, optimizer)
    [state] = (tmp_path / 'run').glob('optimizer-*.safetensors')
    with open(state, 'r+b') as file:
        file.seek(-5, os.SEEK_END)
        byte = file.read(1)
        file.seek(-5, os.SEEK_END)
        file.write(bytes([byte[0] ^ 1]))
    before = [p.detach().clone() for p in network.parameters()]
    with pytest.raises(terrace.DataLossError, match=r'\.exp_avg'):
        terrace.load(tmp_path / 'run', network, optimizer)
    assert all(torch.equal(a, b) for a, b in zip(before,
                                                 network.parameters()))


SAVER = '''
import sys
sys.path.insert(0, sys.argv[2])
from conftest import batches, model, train
import terrace
network = model()
optimizer = terrace.AdamW(network.parameters())
data = batches(2)
train(network, optimizer, data)
for number in range(1000):
    terrace.save(sys.argv[1], network, optimizer, values={'number': number})
    print(number, flush=True)
'''


def test_a_killed_save_leaves_a_whole_checkpoint(tmp_path):
    """Row 24 of docs/deepspeed.md: saves to one place, again and again."""
    path = tmp_path / 'run'
    expected = model()
    train(expected, terrace.AdamW(expected.parameters()), batches(2))
    for wait in range(4):
        process = subprocess.Popen(
            [sys.executable, '-c', SAVER, str(path), os.path.dirname(__file__)],
            stdout=subprocess.PIPE, text=True)
        for _ in range(1 + wait):
            last = int(process.stdout.readline())
        process.kill()
        process.communicate(timeout=60)
        network = model(seed=3)
        values = terrace.load(path, network,
                              terrace.AdamW(network.parameters()))
        assert values['number'] >= last
        assert largest_difference(network, expected) == 0
