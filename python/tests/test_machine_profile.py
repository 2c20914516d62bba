"""What `terrace tune` measured, taken by the optimizers made after."""

import json
import os
import pathlib
import re

import pytest
import torch

import terrace
from conftest import batches, largest_difference, model, train


@pytest.fixture(autouse=True)
def none_after():
    yield
    terrace.use_machine_profile(None)


def text_of(file):
    try:
        return pathlib.Path(file).read_text().strip()
    except FileNotFoundError:
        return ''


def write(file, paths, drives=('none Of this name',), **changes):
    """A profile of this machine, but for the drives."""
    processor = re.search(r'^model name\s*:\s*(.*)$',
                          text_of('/proc/cpuinfo'), re.MULTILINE)
    rates = [{'direction': direction, 'piece_bytes': 1 << 20,
              'window_bytes': 8 << 20, 'bytes_per_second': 1e9,
              'latency_p50_us': 900, 'latency_p99_us': 2000}
             for direction in ('read', 'write')]
    profile = {
        'format': 1, 'machine_id': text_of('/etc/machine-id'),
        'kernel': os.uname().release,
        'processor': processor[1] if processor else '',
        'measured_at': 1700000000, 'threads': 2, 'copy_bytes_per_second': 1e10,
        'instruction_set': terrace.instruction_set(),
        'adam_elements_per_second': 1e9,
        'paths': [{'path': str(path), 'drives': list(drives),
                   'engine': 'io_uring', 'direct_io': True, 'rates': rates}
                  for path in paths], **changes}
    file.write_text(json.dumps(profile))
    return file


def make(path, width=130):
    network = model(width)
    return network, terrace.AdamW(network.parameters(),
                                  memory_budget='256KiB', nvme_path=str(path))


def said(path):
    _, optimizer = make(path)
    try:
        return optimizer.stats()['machine_profile']
    finally:
        optimizer.close()


def test_none_is_used_unless_named(tmp_path):
    assert said(tmp_path) == ''


@pytest.mark.parametrize('changes, reason', [
    ({'machine_id': 'another'}, "the machine was 'another'"),
    ({'kernel': '1.0'}, "'1.0'"),
    ({}, 'none Of this name'),  # another drive
])
def test_a_stale_one_is_told_and_not_used(tmp_path, changes, reason):
    disk = tmp_path / 'disk'
    disk.mkdir()
    file = write(tmp_path / 'machine.json', [disk], **changes)
    terrace.use_machine_profile(file)
    network, optimizer = make(disk)
    assert reason in optimizer.stats()['machine_profile']
    other = model()
    reference = torch.optim.AdamW(other.parameters())
    train(network, optimizer, batches(5))
    train(other, reference, batches(5))
    assert largest_difference(network, other) < 1e-4
    optimizer.close()
    terrace.use_machine_profile(None)
    assert said(disk) == ''


def test_one_of_this_machine_and_drive_holds(tmp_path):
    disk = tmp_path / 'disk'
    disk.mkdir()
    file = write(tmp_path / 'machine.json', [disk])
    terrace.use_machine_profile(file)
    drive = re.search("and is '(.*)'$", said(disk))[1]
    write(file, [disk], drives=drive.split(', ') if drive else [])
    assert said(disk) == 'holds'


def test_a_path_that_was_not_measured_is_told(tmp_path):
    disk = tmp_path / 'disk'
    disk.mkdir()
    terrace.use_machine_profile(write(tmp_path / 'machine.json', []))
    assert str(disk) in said(disk)


def test_it_is_of_no_use_without_a_path(tmp_path):
    terrace.use_machine_profile(write(tmp_path / 'machine.json', []))
    optimizer = terrace.AdamW(model().parameters())
    assert optimizer.stats()['machine_profile'] == ''


def test_a_relative_name_holds_when_the_directory_changes(tmp_path,
                                                          monkeypatch):
    write(tmp_path / 'machine.json', [], machine_id='another')
    monkeypatch.chdir(tmp_path)
    terrace.use_machine_profile('machine.json')
    monkeypatch.chdir('/')
    assert 'another' in said(tmp_path)


def outgrow(network, optimizer):
    """Trains on, and in between adds a group for which memory is too small;
    what refused it, or None. Equals the same in memory all along."""
    assert optimizer.stats()['disk_bytes'] == 0
    other = model(width=20)
    reference = terrace.AdamW(other.parameters())
    added, theirs = (torch.nn.Parameter(torch.linspace(-1, 1, 400_000))
                     for _ in range(2))
    data = batches(4, width=20)
    train(network, optimizer, data[:2])
    train(other, reference, data[:2])
    error = None
    try:
        optimizer.add_param_group({'params': [added]})
        reference.add_param_group({'params': [theirs]})
    except OSError as caught:
        error = caught
    train(network, optimizer, data[2:])
    train(other, reference, data[2:])
    assert largest_difference(network, other) == 0
    return error


def test_an_optimizer_stays_with_the_one_it_was_made_with(tmp_path):
    disk = tmp_path / 'disk'
    disk.mkdir()
    terrace.use_machine_profile(write(tmp_path / 'machine.json', [disk],
                                      machine_id='another'))
    network, optimizer = make(disk, width=20)
    assert optimizer.stats()['machine_profile'] == ''  # no path was needed
    terrace.use_machine_profile(None)
    assert outgrow(network, optimizer) is None
    assert "'another'" in optimizer.stats()['machine_profile']
    assert optimizer.stats()['disk_bytes'] > 0


@pytest.mark.parametrize('name', ['file', 'directory'])
def test_one_that_is_gone_costs_no_state(tmp_path, name):
    path = tmp_path / name
    path.touch() if name == 'file' else path.mkdir()
    profile = write(tmp_path / 'machine.json', [path])
    terrace.use_machine_profile(profile)
    network, optimizer = make(path, width=20)
    assert optimizer.stats()['machine_profile'] == ''
    profile.unlink()
    error = outgrow(network, optimizer)
    assert isinstance(error, FileNotFoundError)
    assert error.filename == str(profile)


def test_one_that_cannot_be_read_is_an_error(tmp_path):
    file = tmp_path / 'machine.json'
    with pytest.raises(FileNotFoundError) as caught:
        terrace.use_machine_profile(file)
    assert caught.value.filename == str(file)
    with pytest.raises(TypeError):
        terrace.use_machine_profile(3.5)
    assert said(tmp_path) == ''  # as before
    file.write_text('{')
    terrace.use_machine_profile(file)
    with pytest.raises(ValueError, match=re.escape(str(file))):
        make(tmp_path)
    file.unlink()
    with pytest.raises(FileNotFoundError):
        make(tmp_path)
