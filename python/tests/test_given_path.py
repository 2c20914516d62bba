"""A file as nvme_path, which is given to Terrace as a block device would be."""

import errno
import json
import os
import subprocess

import pytest
import torch

import terrace
from conftest import batches, largest_difference, model, train
from terrace.__main__ import main


@pytest.fixture
def file(odd_path):
    path = odd_path / 'state'
    path.touch()
    return path


def make(path, budget='256KiB', **settings):
    network = model()
    return network, terrace.AdamW(network.parameters(), memory_budget=budget,
                                  nvme_path=str(path), **settings)


def test_a_file_takes_the_state(file):
    network, optimizer = make(file)
    other = model()
    reference = terrace.AdamW(other.parameters())
    assert train(network, optimizer, batches(5)) == train(other, reference,
                                                          batches(5))
    assert largest_difference(network, other) == 0
    stats = optimizer.stats()
    assert stats['disk_bytes'] > 0
    assert stats['paths'][0]['directory'] == str(file)
    assert file.stat().st_size > 1 << 17
    optimizer.close()
    assert file.stat().st_size == 4096  # its mark
    again, optimizer = make(file)  # it may be used again
    train(again, optimizer, batches(5))
    assert largest_difference(again, other) == 0


def test_one_optimizer_has_it_at_a_time(file):
    network, optimizer = make(file)
    before = os.stat(file).st_size
    with pytest.raises(OSError, match='another') as caught:
        make(file)
    assert caught.value.filename == str(file)
    assert os.stat(file).st_size == before
    train(network, optimizer, batches(3))
    optimizer.close()
    make(file)


def test_a_file_of_others_is_refused_and_stays(file):
    file.write_bytes(b'a diary' * 1000)
    with pytest.raises(ValueError, match='of others'):
        make(file)
    assert file.read_bytes() == b'a diary' * 1000


def test_what_is_neither_file_nor_directory_is_refused(odd_path):
    os.mkfifo(odd_path / 'pipe')
    with pytest.raises((OSError, ValueError)):
        make(odd_path / 'pipe')


def test_a_group_for_which_memory_is_too_small(file):
    network, other = model(width=20), model(width=20)
    optimizer = terrace.AdamW(network.parameters(), memory_budget='256KiB',
                              nvme_path=str(file))
    reference = terrace.AdamW(other.parameters())
    data = batches(4, width=20)
    train(network, optimizer, data[:2])
    train(other, reference, data[:2])
    added, theirs = (torch.nn.Parameter(torch.linspace(-1, 1, 400_000))
                     for _ in range(2))
    assert optimizer.stats()['disk_bytes'] == 0
    optimizer.add_param_group({'params': [added]})
    assert optimizer.stats()['disk_bytes'] > 0
    reference.add_param_group({'params': [theirs]})
    for batch in data[2:]:
        for weight in added, theirs:
            weight.grad = torch.ones_like(weight)
        for net, opt in (network, optimizer), (other, reference):
            net.zero_grad()
            torch.nn.functional.mse_loss(net(batch[0]), batch[1]).backward()
            opt.step()
    assert largest_difference(network, other) == 0
    assert torch.equal(added, theirs)


@pytest.fixture
def device(tmp_path):
    """A block device of 16 MiB."""
    image = tmp_path / 'image'
    with open(image, 'wb') as file:
        file.truncate(16 << 20)
    made = subprocess.run(['losetup', '--find', '--show', str(image)],
                          capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f'no block device here: {made.stderr.strip()}')
    path = made.stdout.strip()
    yield path
    subprocess.run(['losetup', '--detach', path], check=True)


def test_a_block_device_takes_the_state(device):
    network, optimizer = make(device)
    other = model()
    reference = terrace.AdamW(other.parameters())
    assert train(network, optimizer, batches(3)) == train(other, reference,
                                                          batches(3))
    with pytest.raises(OSError) as caught:  # one at a time
        make(device)
    assert caught.value.errno and caught.value.filename == device
    optimizer.close()


def test_a_block_device_that_is_too_small_is_full(device):
    large = torch.nn.Parameter(torch.zeros(4 << 20))  # 32 MiB of state
    with pytest.raises(OSError) as caught:
        terrace.AdamW([large], memory_budget='2MiB', nvme_path=device)
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename == device


def test_info_leaves_it_alone(file, capsys):
    assert main(['info', '--json', '--nvme-path', str(file)]) == 0
    assert 'not opened' in json.loads(capsys.readouterr().out)[f'path {file}']
    assert file.stat().st_size == 0


def test_a_configuration_may_name_it(file):
    network = model(300)
    optimizer, _, _ = terrace.from_deepspeed_config(network, {
        'train_micro_batch_size_per_gpu': 12,
        'optimizer': {'type': 'AdamW', 'params': {'lr': 1e-3}},
        'zero_optimization': {'stage': 1, 'offload_optimizer': {
            'device': 'nvme', 'nvme_path': str(file)}}})
    train(network, optimizer, batches(2, 300))
    assert optimizer.stats()['bytes_written'] > 0
