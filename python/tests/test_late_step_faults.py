"""What overlap=True refuses, what waits while a disk does not answer, and what
a late update that fails leaves."""

import contextlib
import errno
import fcntl
import os
import resource
import shutil
import subprocess
import threading

import pytest
import torch

import terrace
from conftest import model
from offloaded import check_equal_values, mlp, mlp_loss, values
from terrace._optimizer.adamw import store_of
from test_faults import doomed_disk, mounted  # noqa: F401

FIFREEZE, FITHAW = 0xC0045877, 0xC0045878


def made(network, **settings):
    return terrace.AdamW(network.parameters(), lr=1e-2,
                         **{'overlap': True, **settings})


@pytest.mark.parametrize('value', [1, 0, 'yes'])
def test_neither_true_nor_false(value):
    with pytest.raises(ValueError, match='overlap is True, False or None'):
        made(model(), overlap=value)


def test_in_backward_too():
    with pytest.raises(ValueError, match='step_in_backward and overlap=True'):
        made(model(), step_in_backward=1)


def test_without_overlap_there_is_nothing_to_wait_for():
    network = model()
    optimizer = terrace.AdamW(network.parameters())
    optimizer.flush()
    optimizer.close()
    optimizer.flush()


def test_a_gradient_that_cannot_be_used():
    network = torch.nn.Sequential(torch.nn.Embedding(50, 128, sparse=True),
                                  torch.nn.Linear(128, 4))
    optimizer = made(network)
    network(torch.arange(9)).sum().backward()
    before = values(network)
    with pytest.raises(ValueError, match="gradient of parameter 'group 0"):
        optimizer.step()
    check_equal_values(values(network), before)
    optimizer.zero_grad()
    network[1](torch.ones(128)).sum().backward()
    optimizer.step()
    assert optimizer.stats()['steps'] == 1


@pytest.fixture
def frozen_disk(tmp_path):
    """(a directory, what holds back its writes, what lets them go)."""
    image = tmp_path / 'image'
    with open(image, 'wb') as file:
        file.truncate(64 << 20)
    if not shutil.which('mkfs.ext4'):
        pytest.skip('no mkfs.ext4 here')
    subprocess.run(['mkfs.ext4', '-q', str(image)], check=True)
    with mounted(tmp_path / 'disk', '-o', 'loop', str(image)) as directory:
        descriptor = os.open(directory, os.O_RDONLY)
        held = []

        def freeze():
            try:
                fcntl.ioctl(descriptor, FIFREEZE, 0)
            except OSError as error:
                pytest.skip(f'freezing is refused here: {error}')
            held.append(True)

        def thaw():
            if held:
                held.clear()
                fcntl.ioctl(descriptor, FITHAW, 0)

        try:
            yield directory, freeze, thaw
        finally:
            thaw()
            os.close(descriptor)


def two_steps(network, optimizer, freeze):
    """The second while the disk takes no writes."""
    generator = torch.Generator().manual_seed(1)
    mlp_loss(network, generator).backward()
    optimizer.step()
    optimizer.zero_grad()
    optimizer.flush()
    mlp_loss(network, generator).backward()
    freeze()
    optimizer.step()


def test_step_returns_while_the_disk_is_held(frozen_disk):
    directory, freeze, thaw = frozen_disk
    plain = mlp(24)
    two_steps(plain, terrace.AdamW(plain.parameters(), lr=1e-2), lambda: None)
    network = mlp(24)
    arrays = {name: p.detach().numpy()
              for name, p in network.named_parameters()}
    optimizer = made(network, memory_budget='1%', nvme_path=str(directory))
    two_steps(network, optimizer, freeze)
    expected = values(plain)

    def is_updated(name):
        return bool((arrays[name] == expected[name].numpy()).all())

    behind = [name for name in arrays if not is_updated(name)]
    assert behind  # they wait for the disk
    parameters = dict(network.named_parameters())
    optimizer.zero_grad()
    seen, ended = {}, threading.Event()

    def look():
        for name in behind:
            seen[name] = parameters[name].clone()
        ended.set()

    thread = threading.Thread(target=look)
    thread.start()
    assert not ended.wait(0.2)
    assert not is_updated(behind[-1])
    thaw()
    thread.join()
    check_equal_values(seen, {name: expected[name] for name in behind})
    optimizer.flush()
    check_equal_values(values(network), expected)
    optimizer.close()


def test_whether_a_step_was_skipped_waits_for_no_update(frozen_disk):
    directory, freeze, thaw = frozen_disk
    plain = mlp(24)
    two_steps(plain, terrace.AdamW(plain.parameters(), lr=1e-2), lambda: None)
    network = mlp(24)
    arrays = [p.detach().numpy() for p in network.parameters()]
    optimizer = made(network, memory_budget='1%', nvme_path=str(directory))
    two_steps(network, optimizer, freeze)
    late = threading.Timer(60, thaw)  # else one that waits would for ever
    late.start()
    assert not store_of(optimizer).compiled.skipped()
    assert any((mine != other.detach().numpy()).any()
               for mine, other in zip(arrays, plain.parameters()))
    late.cancel()
    thaw()
    optimizer.flush()
    assert not store_of(optimizer).compiled.skipped()
    check_equal_values(values(network), values(plain))


def fail_late(directory, doom, steps=9):
    """A model of which a late update has failed, its optimizer, and the values
    that it is to have."""
    plain, network = mlp(24), mlp(24)
    reference = terrace.AdamW(plain.parameters(), lr=1e-2)
    optimizer = made(network, memory_budget='10%', nvme_path=str(directory))
    for each, one in ((plain, reference), (network, optimizer)):
        generator = torch.Generator().manual_seed(1)
        mlp_loss(each, generator).backward()
        one.step()
        one.flush()
        one.zero_grad()
        if one is optimizer:
            doom()
        mlp_loss(each, generator).backward()
        one.step()
    return network, optimizer, values(plain)


def test_a_disk_that_fails(doomed_disk, tmp_path):  # noqa: F811
    directory, doom, number = doomed_disk
    network, optimizer, expected = fail_late(directory, doom)

    def is_ours(error):
        assert error.errno == number
        assert os.fspath(directory) in str(error.filename)

    refused = []
    for name, parameter in network.named_parameters():
        try:
            assert torch.equal(parameter, expected[name])
        except RuntimeError as error:
            assert str(error).startswith('terrace:'), error
            assert 'could not be updated' in str(error)
            assert 'optimizer.flush() tries again' in str(error)
            assert os.fspath(directory) in str(error)
            refused.append(name)
            with pytest.raises(RuntimeError, match='could not be updated'):
                parameter.data_ptr()
            with pytest.raises(RuntimeError, match='could not be updated'):
                parameter.grad.zero_()
    assert refused
    for use in (optimizer.step, optimizer.flush, optimizer.state_dict,
                lambda: terrace.save(tmp_path / 'saved', network, optimizer),
                lambda: optimizer.state[network[0].weight]['exp_avg'],
                optimizer.flush, optimizer.step):
        with pytest.raises(OSError) as caught:
            use()
        is_ours(caught.value)
    with contextlib.suppress(OSError):  # files of a disk that is gone
        optimizer.close()


def test_a_close_after_a_failure_tells(doomed_disk):  # noqa: F811
    directory, doom, number = doomed_disk
    _, optimizer, _ = fail_late(directory, doom)
    with pytest.raises(OSError) as caught:
        optimizer.close()
    assert caught.value.errno == number
    with contextlib.suppress(OSError):
        optimizer.close()


@contextlib.contextmanager
def no_large_files():
    """Writes behind the first page of a file are EFBIG."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def pair_of_runs(tmp_path, **settings):
    """Two models with their optimizers, ours the second; a step of both. The
    first has no disk, which may be made to fail while it writes back."""
    runs = []
    for places in ({'overlap': False},
                   {'memory_budget': '10%', 'nvme_path': str(tmp_path)}):
        network = mlp(24)
        optimizer = made(network, **places, **settings)
        runs.append((network, optimizer, torch.Generator().manual_seed(1)))
    step_all(runs)
    return runs


def step_all(runs):
    for network, optimizer, generator in runs:
        mlp_loss(network, generator).backward()
        optimizer.step()
        optimizer.flush()
        optimizer.zero_grad()


def fail_one(runs):
    """A late update of the second has failed; the first is what it is to be."""
    (plain, reference, drawn), (network, optimizer, generator) = runs
    mlp_loss(plain, drawn).backward()
    reference.step()
    reference.zero_grad()
    mlp_loss(network, generator).backward()
    with no_large_files():
        optimizer.step()
        with pytest.raises(OSError) as caught:
            optimizer.flush()
    assert caught.value.errno == errno.EFBIG


def refused(network):
    """How many of its parameters cannot be used."""
    count = 0
    for p in network.parameters():
        try:
            p.sum()
        except RuntimeError:
            count += 1
    return count


@pytest.mark.parametrize('look', [False, True])
@pytest.mark.parametrize('again', ['flush', 'step'])
@pytest.mark.parametrize('dropped', [False, True])
def test_flush_tries_again_to_the_same_bits(tmp_path, look, again, dropped):
    runs = pair_of_runs(tmp_path, max_grad_norm=0.5)
    fail_one(runs)
    (plain, reference, drawn), (network, optimizer, generator) = runs
    if dropped:
        optimizer.zero_grad()
    if look:
        assert refused(network)
        for p in network.parameters():
            if p.grad is not None:
                with contextlib.suppress(RuntimeError):
                    p.grad.sum()  # may be read
    with pytest.raises(OSError):
        optimizer.state_dict()
    if again == 'flush':
        optimizer.flush()
    else:
        optimizer.zero_grad()
        optimizer.step()  # without gradients
        reference.step()
    check_equal_values(values(network), values(plain))
    assert all(p.data_ptr() for p in network.parameters())
    optimizer.zero_grad()
    step_all(runs)
    check_equal_values(values(network), values(plain))
    assert optimizer.stats()['steps'] == reference.stats()['steps']


def test_gradients_stay_held(tmp_path):
    runs = pair_of_runs(tmp_path)
    fail_one(runs)
    network, optimizer, _ = runs[1]
    refused = 0
    for p in network.parameters():
        try:
            p.grad.zero_()
        except RuntimeError as error:
            assert 'could not be updated' in str(error)
            refused += 1
    assert refused
    optimizer.flush()
    check_equal_values(values(network), values(runs[0][0]))
    optimizer.zero_grad(set_to_none=False)
    assert not any(p.grad.any() for p in network.parameters())


@pytest.mark.parametrize('how', ['close', 'load'])
def test_what_gives_it_up_leaves_parameters_that_can_be_used(tmp_path, how):
    for name in ('state', 'elsewhere'):
        (tmp_path / name).mkdir()
    runs = pair_of_runs(tmp_path / 'state')
    network, optimizer, generator = runs[1]
    terrace.save(tmp_path / 'saved', network, optimizer)
    at = values(network)
    fail_one(runs)
    assert refused(network)
    if how == 'load':
        terrace.load(tmp_path / 'saved', network, optimizer)
        check_equal_values(values(network), at)
    else:
        optimizer.close()  # it was told
    assert all(p.data_ptr() and p.sum().isfinite()
               for p in network.parameters())
    optimizer.close()
    resumed = made(network, memory_budget='10%',
                   nvme_path=str(tmp_path / 'elsewhere'))
    terrace.load(tmp_path / 'saved', network, resumed)
    check_equal_values(values(network), at)
    resumed.zero_grad()
    generator.manual_seed(2)
    runs[0][2].manual_seed(2)
    plain = mlp(24, seed=3)
    reference = made(plain, overlap=False)
    terrace.load(tmp_path / 'saved', plain, reference)
    step_all([(plain, reference, runs[0][2]), (network, resumed, generator)])
    check_equal_values(values(network), values(plain))


def test_a_load_that_is_refused_leaves_the_step(tmp_path):
    runs = pair_of_runs(tmp_path)
    other = mlp(24)
    other[0].weight = torch.nn.Parameter(torch.zeros(3, 5))
    terrace.save(tmp_path / 'other', other, made(other, overlap=False))
    fail_one(runs)
    (plain, _, _), (network, optimizer, _) = runs
    with pytest.raises(ValueError, match='of another model'):
        terrace.load(tmp_path / 'other', network, optimizer)
    with pytest.raises(RuntimeError, match='could not be updated'):
        torch._foreach_norm(list(network.parameters()))
    optimizer.flush()
    check_equal_values(values(network), values(plain))
    optimizer.zero_grad()
    runs[0][1].zero_grad()
    step_all(runs)
    check_equal_values(values(network), values(plain))
