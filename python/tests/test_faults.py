"""What goes wrong with disks under a run: an exception of the right type with
errno and path, and the run goes on from its last checkpoint."""

import contextlib
import errno
import fcntl
import os
import shutil
import signal
import struct
import subprocess
import sys
import time

import pytest
import torch

import terrace
from conftest import ODD, batches, largest_difference, model, train

# ext4, xfs and others: from now on every request is EIO, as of a device that
# was unplugged.
FS_IOC_SHUTDOWN = 0x8004587D
WITHOUT_A_LOG = 2


def call(*command):
    return subprocess.run(command, capture_output=True, text=True)


@contextlib.contextmanager
def mounted(directory, *mount):
    """Skips where that cannot be mounted."""
    if os.geteuid() != 0:
        pytest.skip('mounting a file system needs root')
    directory.mkdir()
    result = call('mount', *mount, str(directory))
    if result.returncode:
        pytest.skip(f'mount is refused here: {result.stderr.strip()}')
    try:
        yield directory
    finally:
        call('umount', '--lazy', str(directory))


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 4 MiB."""
    with mounted(tmp_path / ODD, '-t', 'tmpfs', '-o', 'size=4m',
                 'tmpfs') as directory:
        yield directory


@pytest.fixture(params=[errno.EIO, errno.EROFS], ids=['gone', 'read-only'])
def doomed_disk(request, tmp_path):
    """(a directory, what makes every request to it fail, with which errno)."""
    if not shutil.which('mkfs.ext4'):
        pytest.skip('no mkfs.ext4 here')
    image = tmp_path / 'image'
    with open(image, 'wb') as file:
        file.truncate(64 << 20)
    made = call('mkfs.ext4', '-q', str(image))
    assert made.returncode == 0, made.stderr

    def doom():
        if request.param == errno.EROFS:
            become_read_only(tmp_path / ODD)
            return
        descriptor = os.open(tmp_path / ODD, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, FS_IOC_SHUTDOWN,
                        struct.pack('I', WITHOUT_A_LOG))
        finally:
            os.close(descriptor)

    with mounted(tmp_path / ODD, '-o', 'loop', str(image)) as directory:
        yield directory, doom, request.param


def become_read_only(directory):
    """What ext4 does by itself when it finds damage; while files are open for
    writing the kernel takes no other way of asking for it."""
    with open(directory / 'probe', 'wb') as probe:
        probe.write(bytes(4096))
        probe.flush()
        os.fsync(probe.fileno())
        result = call('mount', '-o', 'remount,abort', str(directory))
        if result.returncode:
            pytest.skip(f'remount is refused here: {result.stderr.strip()}')
        try:
            os.pwrite(probe.fileno(), bytes(4096), 0)
        except OSError as error:
            assert error.errno == errno.EROFS
        else:
            pytest.skip('this kernel lets open files be written on')


def fill(directory):
    """Leaves no room on the disk."""
    with open(directory / 'ballast', 'wb') as file:
        with contextlib.suppress(OSError):
            while True:
                file.write(bytes(1 << 16))
                file.flush()


def parameter(elements, seed=0):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.nn.Parameter(torch.randn(elements, generator=generator))
    weight.grad = torch.randn(elements, generator=generator)
    return weight


def test_a_disk_without_room_is_told_at_the_start(small_disk):
    with pytest.raises(OSError) as caught:
        terrace.AdamW([parameter(1 << 20)], memory_budget='1MiB',
                      nvme_path=str(small_disk))
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename.startswith(f'{small_disk}/terrace-')
    assert not list(small_disk.iterdir())


@pytest.mark.parametrize('budget', ['1MiB', '50%'])
def test_a_disk_that_fills_up_in_mid_run(small_disk, budget):
    """Row 31 of docs/deepspeed.md. A group finds no room; the run goes on
    without it, and with it once there is room."""
    weight, twin = parameter(200_000), parameter(200_000)
    optimizer = terrace.AdamW([weight], memory_budget=budget,
                              nvme_path=str(small_disk))
    reference = terrace.AdamW([twin])
    optimizer.step()
    reference.step()
    fill(small_disk)
    added = parameter(200_000, seed=1)
    added_twin = parameter(200_000, seed=1)
    with pytest.raises(OSError) as caught:
        optimizer.add_param_group({'params': [added]})
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename.startswith(f'{small_disk}/terrace-')
    assert len(optimizer.param_groups) == 1
    optimizer.step()  # its own room was taken at the start
    reference.step()
    assert torch.equal(weight, twin)
    (small_disk / 'ballast').unlink()
    optimizer.add_param_group({'params': [added]})
    reference.add_param_group({'params': [added_twin]})
    optimizer.step()
    reference.step()
    assert torch.equal(weight, twin) and torch.equal(added, added_twin)


def test_a_checkpoint_that_finds_no_room_leaves_the_one_before(small_disk):
    network = model()
    optimizer = terrace.AdamW(network.parameters())
    path = small_disk / 'checkpoint'
    train(network, optimizer, batches(2))
    terrace.save(path, network, optimizer)
    kept = [p.detach().clone() for p in network.parameters()]
    train(network, optimizer, batches(1))
    fill(small_disk)
    with pytest.raises(OSError) as caught:
        terrace.save(path, network, optimizer)
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename.startswith(f'{path}/')
    other = model(seed=1)
    resumed = terrace.AdamW(other.parameters())
    terrace.load(path, other, resumed)
    assert all(torch.equal(a, b) for a, b in
               zip(kept, other.parameters(), strict=True))


@pytest.mark.parametrize('engine', ['threads', 'io_uring'])
def test_a_disk_that_is_gone_and_a_run_that_resumes(doomed_disk, tmp_path,
                                                    engine):
    """Row 31 of docs/deepspeed.md: a device that is unplugged, or turns
    read-only."""
    disk, doom, number = doomed_disk
    network, other = model(), model()
    settings = {'memory_budget': '256KiB', 'io_engine': engine}
    try:
        optimizer = terrace.AdamW(network.parameters(), nvme_path=str(disk),
                                  **settings)
    except RuntimeError as error:
        pytest.skip(f'no engine of that kind here: {error}')
    reference = terrace.AdamW(other.parameters())
    data = batches(8)
    train(network, optimizer, data[:4])
    terrace.save(tmp_path / 'checkpoint', network, optimizer)
    train(other, reference, data)
    doom()
    with pytest.raises(OSError) as caught:
        train(network, optimizer, data[4:])
    assert caught.value.errno == number
    assert caught.value.filename.startswith(f'{disk}/terrace-')
    assert caught.value.offset % 4096 == 0
    told, = optimizer.stats()['paths']
    assert told['state'] in ('refuses writes', 'unreadable')
    assert not told['degraded'] or str(disk) in told['write_error']
    with contextlib.suppress(OSError):
        optimizer.close()
    with pytest.raises(OSError) as caught:
        terrace.AdamW(network.parameters(), nvme_path=str(disk), **settings)
    assert caught.value.errno == number and caught.value.filename
    elsewhere = tmp_path / 'elsewhere'
    elsewhere.mkdir()
    resumed = terrace.AdamW(network.parameters(), nvme_path=str(elsewhere),
                            **settings)
    terrace.load(tmp_path / 'checkpoint', network, resumed)
    train(network, resumed, data[4:])
    assert largest_difference(network, other) == 0


def test_a_disk_that_became_read_only(small_disk):
    network = model()
    optimizer = terrace.AdamW(network.parameters())
    path = small_disk / 'checkpoint'
    train(network, optimizer, batches(2))
    terrace.save(path, network, optimizer)
    remounted = call('mount', '-o', 'remount,ro', str(small_disk))
    assert remounted.returncode == 0, remounted.stderr
    with pytest.raises(OSError) as caught:
        terrace.save(path, network, optimizer)
    assert caught.value.errno == errno.EROFS
    assert caught.value.filename.startswith(f'{path}/')
    with pytest.raises(OSError) as caught:
        terrace.AdamW([parameter(1 << 20)], memory_budget='1MiB',
                      nvme_path=str(small_disk))
    assert caught.value.filename == str(small_disk)
    other = model(seed=1)
    terrace.load(path, other, terrace.AdamW(other.parameters()))
    assert largest_difference(network, other) == 0


def test_a_budget_that_became_too_small(tmp_path):
    """A tensor so large that the least window for it does not fit: refused,
    and what was there goes on."""
    small, twin = parameter(1_000), parameter(1_000)
    optimizer = terrace.AdamW([small], memory_budget='100KiB',
                              nvme_path=str(tmp_path))
    reference = terrace.AdamW([twin])
    optimizer.step()
    reference.step()
    with pytest.raises(ValueError, match=r'below the minimum of \d+ bytes'):
        optimizer.add_param_group({'params': [parameter(1 << 20, seed=1)]})
    assert len(optimizer.param_groups) == 1
    optimizer.step()
    reference.step()
    assert torch.equal(small, twin)
    assert optimizer.stats()['steps'] == 2


def test_a_budget_with_room_left_takes_more(tmp_path):
    """What the first group did not need is there for the next."""
    small, twin = parameter(1_000), parameter(1_000)
    large, large_twin = parameter(300_000, 1), parameter(300_000, 1)
    optimizer = terrace.AdamW([small], memory_budget='1MiB',
                              nvme_path=str(tmp_path))
    reference = terrace.AdamW([twin])
    for add in False, True:
        if add:
            optimizer.add_param_group({'params': [large]})
            reference.add_param_group({'params': [large_twin]})
        optimizer.step()
        reference.step()
    assert torch.equal(small, twin) and torch.equal(large, large_twin)
    assert optimizer.stats()['disk_bytes'] > 0
    assert optimizer.stats()['memory_bytes'] == 1 << 20


STARTING = '''
import sys
import torch, terrace
print('started', flush=True)
weight = torch.nn.Parameter(torch.zeros(8 << 20))
optimizer = terrace.AdamW([weight], memory_budget='8MiB',
                          nvme_path=sys.argv[1])
print('made', flush=True)
weight.grad = torch.ones_like(weight)
optimizer.step()
print('stepped', flush=True)
sys.stdin.readline()
'''


@pytest.mark.parametrize('moment', ['started', 'placing', 'made'])
def test_a_start_that_is_killed_keeps_no_later_one_waiting(tmp_path, moment):
    """Row 34 of docs/deepspeed.md."""
    child = subprocess.Popen([sys.executable, '-c', STARTING, str(tmp_path)],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                             text=True)
    try:
        assert child.stdout.readline() == 'started\n'
        deadline = time.monotonic() + 60
        if moment == 'placing':  # as soon as anything of it is there
            while not list(tmp_path.iterdir()):
                assert time.monotonic() < deadline and child.poll() is None
        elif moment == 'made':
            assert child.stdout.readline() == 'made\n'
        child.send_signal(signal.SIGKILL)
    finally:
        child.kill()
        child.communicate()
    began = time.monotonic()
    weight = parameter(100_000)
    optimizer = terrace.AdamW([weight], memory_budget='512KiB',
                              nvme_path=str(tmp_path))
    optimizer.step()
    assert time.monotonic() - began < 30
    optimizer.close()
    assert not list(tmp_path.iterdir())  # what was left is reclaimed
