"""Where the state goes, what that costs, and what can be wrong with it."""

import errno
import os
import resource
import subprocess
import sys

import numpy
import pytest
import torch

import terrace
from conftest import batches, largest_difference, model, train
from terrace._base import errors
from terrace._base.amounts import budget_bytes
from terrace._base.paths import path_list


@pytest.mark.parametrize('text, expected', [
    (12345, 12345), (8e9, 8_000_000_000), (numpy.int64(5), 5),
    ('12345', 12345), ('8GiB', 8 << 30), ('1.5 MiB', 3 << 19),
    ('500 MB', 500_000_000), ('2kb', 2000), ('10%', 100), ('0.15 %', 2),
    ('100%', 1000), (None, None)])
def test_budgets(text, expected):
    assert budget_bytes(text, 1000) == expected


@pytest.mark.parametrize('text', ['', 'much', '8 apples', '-1GiB', '0', 0, -5,
                                  '10%%', '1e9'])
def test_bad_budgets(text):
    with pytest.raises(ValueError, match='memory_budget'):
        budget_bytes(text, 1000)


@pytest.mark.parametrize('value', [1.5, True, [1]])
def test_budgets_of_a_wrong_type(value):
    with pytest.raises(TypeError, match='memory_budget'):
        budget_bytes(value, 1000)


def test_paths():
    assert path_list(None) == []
    assert path_list('/a') == ['/a']
    assert path_list(['/a', '/b']) == ['/a', '/b']
    with pytest.raises(TypeError):
        path_list(3)


def large():
    torch.manual_seed(0)
    return torch.nn.Linear(1024, 1024)  # 8.4 MB of state


def test_memory_is_within_the_budget(tmp_path):
    network = large()
    optimizer = terrace.AdamW(network.parameters(), memory_budget='25%',
                              nvme_path=str(tmp_path))
    network.weight.grad = torch.ones_like(network.weight)
    network.bias.grad = torch.ones_like(network.bias)
    for _ in range(3):
        optimizer.step()
    stats = optimizer.stats()
    state = stats['state_bytes']
    assert state == 8 * (1024 * 1024 + 1024)
    assert stats['memory_peak_bytes'] <= stats['memory_bytes'] <= state / 4 + 1
    assert stats['disk_bytes'] >= state
    assert stats['bytes_written'] >= 3 * 0.5 * state
    assert stats['bytes_read'] >= 2 * 0.5 * state
    assert stats['steps'] == 3
    assert stats['step_seconds'] > 0
    assert set(stats['blocked_seconds']) == {'read', 'write', 'space'}
    assert stats['engine'] in ('io_uring', 'threads')
    assert stats['instruction_set'] == terrace.instruction_set()
    files = [p for p in tmp_path.rglob('*') if p.is_file()]
    assert sum(p.stat().st_size for p in files) >= state


def test_files_are_gone_after_close(tmp_path):
    network = large()
    optimizer = terrace.AdamW(network.parameters(), memory_budget='2MiB',
                              nvme_path=str(tmp_path))
    assert list(tmp_path.iterdir())
    optimizer.close()
    assert not list(tmp_path.iterdir())
    optimizer.close()
    network.weight.grad = torch.ones_like(network.weight)
    with pytest.raises(RuntimeError, match='closed'):
        optimizer.step()
    with pytest.raises(RuntimeError, match='closed'):
        optimizer.stats()


def test_files_are_gone_when_the_optimizer_is(tmp_path):
    network = large()
    optimizer = terrace.AdamW(network.parameters(), memory_budget='2MiB',
                              nvme_path=str(tmp_path))
    assert list(tmp_path.iterdir())
    del optimizer
    assert not list(tmp_path.iterdir())


def test_a_budget_below_the_minimum_names_it(tmp_path):
    with pytest.raises(ValueError, match=r'below the minimum of \d+ bytes'):
        terrace.AdamW(large().parameters(), memory_budget=4096,
                      nvme_path=str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_a_budget_without_a_path_says_what_is_missing():
    with pytest.raises(ValueError, match='no nvme_path'):
        terrace.AdamW(large().parameters(), memory_budget='50%')


def test_an_ample_budget_needs_no_path():
    optimizer = terrace.AdamW(large().parameters(), memory_budget='1GiB')
    assert optimizer.stats()['memory_bytes'] < 20 << 20


@pytest.mark.parametrize('name, exception', [
    ('typo/below', FileNotFoundError), ('file/below', NotADirectoryError),
    ('', ValueError)])
def test_bad_paths_are_named_and_never_made(tmp_path, name, exception):
    """Row 32 of docs/deepspeed.md."""
    (tmp_path / 'file').write_text('')
    path = str(tmp_path / name) if name else ''
    with pytest.raises(exception, match='nvme_path') as caught:
        terrace.AdamW(large().parameters(), memory_budget='2MiB',
                      nvme_path=path)
    if isinstance(caught.value, OSError):
        assert caught.value.filename == path
        assert caught.value.errno in (errno.ENOENT, errno.ENOTDIR)
    assert [p.name for p in tmp_path.iterdir()] == ['file']


def test_a_path_named_twice_is_refused(tmp_path):
    with pytest.raises(ValueError, match='twice'):
        terrace.AdamW(large().parameters(), memory_budget='2MiB',
                      nvme_path=[str(tmp_path), str(tmp_path)])


def test_statuses_become_exceptions_of_the_right_type():
    odd = '/m, "n": it\'s (ENOSPC (x)'
    cases = [
        (3, 'bad', 0, '', -1, ValueError, None),
        (3, 'no directory', errno.ENOTDIR, odd, -1, NotADirectoryError,
         errno.ENOTDIR),
        (5, 'gone', errno.ENOENT, odd, -1, FileNotFoundError, errno.ENOENT),
        (5, 'gone', 0, '', -1, FileNotFoundError, errno.ENOENT),
        (7, 'no', errno.EROFS, odd, -1, OSError, errno.EROFS),
        (7, 'no', 0, odd, -1, PermissionError, errno.EACCES),
        (8, 'full', errno.ENOSPC, odd, 4096, OSError, errno.ENOSPC),
        (8, 'no memory', errno.ENOMEM, '', -1, MemoryError, None),
        (8, 'all slots are held', 0, '', -1, MemoryError, None),
        (4, 'late', 0, odd, 0, TimeoutError, errno.ETIMEDOUT),
        # A message is not searched: what it quotes may be anything.
        (9, 'wrong: ENOSPC (a file of that name)', 0, '', -1, RuntimeError,
         None),
        (12, 'not yet', 0, '', -1, NotImplementedError, None),
        (14, 'no write', errno.EIO, odd, 0, OSError, errno.EIO),
        (14, "terrace: 'a' 4 KiB: no read", errno.EIO, odd, 0, OSError,
         errno.EIO),
        (15, 'altered', 0, odd, 8192, terrace.DataLossError, errno.EIO),
    ]
    for code, message, number, path, offset, kind, expected in cases:
        error = errors.exception_of((code, message, number, path, offset))
        assert type(error) is kind, message
        assert message in str(error)
        assert str(error).count('terrace: ') == 1
        if isinstance(error, OSError):
            assert error.errno == expected
            assert error.filename == (path or None)
            assert error.offset == (None if offset < 0 else offset)


LIMITED = '''
import errno, resource, signal, sys
import torch, terrace
sys.path.insert(0, sys.argv[2])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
weight = torch.nn.Parameter(torch.zeros(1 << 20))
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
try:
    optimizer = terrace.AdamW([weight], memory_budget='2MiB',
                              nvme_path=sys.argv[1])
    weight.grad = torch.ones_like(weight)
    for _ in range(3):
        optimizer.step()
except OSError as error:
    print(errno.errorcode[error.errno],
          error.filename.startswith(sys.argv[1] + '/terrace-'))
else:
    print('nothing was raised')
'''


def run(code, *arguments, **options):
    return subprocess.run([sys.executable, *options.pop('flags', []), '-c',
                           code, *map(str, arguments)], capture_output=True,
                          text=True, timeout=120, **options)


def test_a_path_without_room_is_an_os_error_with_errno_and_path(odd_path):
    result = run(LIMITED, odd_path, os.path.dirname(__file__))
    assert result.stdout.split() == ['EFBIG', 'True'], result
    assert resource.getrlimit(resource.RLIMIT_FSIZE)


FAILING = '''
import errno, glob, resource, signal, sys
import torch, terrace
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
ordered = torch.t if sys.argv[2] == 'transposed' else torch.clone

def make(**settings):
    torch.manual_seed(0)
    weight = torch.nn.Parameter(ordered(torch.randn(1024, 1024)))
    weight.grad = torch.randn(1024, 1024)
    return weight, terrace.AdamW([weight], **settings)

weight, optimizer = make(memory_budget='2MiB', nvme_path=sys.argv[1])
other, reference = make()
optimizer.step()
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
failed = None
for steps in range(1, 5):
    try:
        optimizer.step()
    except OSError as error:
        failed = error
        break
[state] = glob.glob(glob.escape(sys.argv[1]) + '/*/state')
print(errno.errorcode[failed.errno], failed.filename == state,
      failed.offset >= 1 << 20)
resource.setrlimit(resource.RLIMIT_FSIZE,
                   (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
optimizer.step()  # the same gradients: finishes what is missing
for _ in range(optimizer.stats()['steps']):
    reference.step()
print(optimizer.stats()['steps'] == steps + 1, torch.equal(weight, other))
'''


@pytest.mark.parametrize('order', ['straight', 'transposed'])
def test_failing_writes_are_raised_and_the_step_can_be_finished(odd_path,
                                                                order):
    """Row 30 of docs/deepspeed.md."""
    result = run(FAILING, odd_path, order)
    assert result.stdout.split() == ['EFBIG'] + ['True'] * 4, result


def test_a_truncated_file_is_a_typed_error(odd_path):
    """Row 31 of docs/deepspeed.md."""
    network = large()
    optimizer = terrace.AdamW(network.parameters(), memory_budget='1MiB',
                              nvme_path=str(odd_path))
    network.weight.grad = torch.ones_like(network.weight)
    optimizer.step()
    [state] = odd_path.glob('*/state')
    assert state.stat().st_size > 1 << 20
    os.truncate(state, 4096)
    with pytest.raises(terrace.DataLossError) as caught:
        for _ in range(4):
            optimizer.step()
    assert caught.value.filename == str(state)
    assert caught.value.errno == errno.EIO and caught.value.offset >= 4096


def test_a_vanished_path_is_an_error_and_the_run_can_be_resumed(tmp_path):
    """Row 31 of docs/deepspeed.md: the directory is removed under the running
    job. Its open files stay, so the run goes on; a new optimizer there is
    refused."""
    path = tmp_path / 'nvme'
    path.mkdir()
    network, other = model(), model()
    settings = {'memory_budget': '256KiB', 'nvme_path': str(path)}
    optimizer = terrace.AdamW(network.parameters(), **settings)
    reference = terrace.AdamW(other.parameters())
    train(network, optimizer, batches(2))
    for job in path.iterdir():
        for file in job.iterdir():
            file.unlink()
        job.rmdir()
    path.rmdir()
    train(network, optimizer, batches(3))
    train(other, reference, batches(2))
    train(other, reference, batches(3))
    assert largest_difference(network, other) == 0
    with pytest.raises(FileNotFoundError) as caught:
        terrace.AdamW(model().parameters(), **settings)
    assert caught.value.filename == str(path)


def test_altered_state_is_data_loss_that_names_the_tensor(odd_path):
    """Rows 13 and 30 of docs/deepspeed.md."""
    network = large()
    optimizer = terrace.AdamW(network.parameters(), memory_budget='1MiB',
                              nvme_path=str(odd_path), io_engine='threads')
    network.weight.grad = torch.ones_like(network.weight)
    optimizer.step()
    [state] = odd_path.glob('*/state')
    zeros = bytes(4096)
    with open(state, 'r+b') as file:
        for offset in range(8192, state.stat().st_size, 16384):
            file.seek(offset)
            file.write(zeros)
        file.flush()
        os.fsync(file.fileno())
    with pytest.raises(terrace.DataLossError, match='optimizer/chunk') as caught:
        for _ in range(4):
            optimizer.step()
    assert caught.value.errno == errno.EIO
    assert caught.value.filename == str(state)
    assert caught.value.offset % 4096 == 0
    with pytest.raises(terrace.DataLossError):  # sticky
        optimizer.step()


def test_two_jobs_share_a_path(tmp_path):
    """Row 22 of docs/deepspeed.md: the second takes nothing of the first's."""
    code = '''
import sys
sys.path.insert(0, sys.argv[2])
from conftest import batches, model, train
import terrace
network = model()
optimizer = terrace.AdamW(network.parameters(), memory_budget='256KiB',
                          nvme_path=sys.argv[1])
train(network, optimizer, batches(6))
print(sum(p.double().sum().item() for p in network.parameters()))
'''
    here = os.path.dirname(__file__)
    jobs = [subprocess.Popen([sys.executable, '-c', code, str(tmp_path), here],
                             stdout=subprocess.PIPE, text=True)
            for _ in range(2)]
    sums = [job.communicate(timeout=120)[0] for job in jobs]
    assert all(job.returncode == 0 for job in jobs)
    network = model()
    train(network, terrace.AdamW(network.parameters()), batches(6))
    expected = sum(p.double().sum().item() for p in network.parameters())
    assert [float(s) for s in sums] == [expected, expected]
    assert not list(tmp_path.iterdir())


def test_files_of_a_killed_job_are_reclaimed(tmp_path):
    """Row 22 of docs/deepspeed.md."""
    code = '''
import os, signal, sys
import torch, terrace
weight = torch.nn.Parameter(torch.zeros(1 << 18))
optimizer = terrace.AdamW([weight], memory_budget='1MiB',
                          nvme_path=sys.argv[1])
weight.grad = torch.ones_like(weight)
optimizer.step()
os.kill(os.getpid(), signal.SIGKILL)
'''
    assert run(code, tmp_path).returncode == -9
    [stale] = tmp_path.iterdir()
    optimizer = terrace.AdamW(large().parameters(), memory_budget='2MiB',
                              nvme_path=str(tmp_path))
    assert stale not in list(tmp_path.iterdir())
    optimizer.close()


def test_python_O_makes_no_difference(tmp_path):
    """Row 10 of docs/deepspeed.md."""
    code = '''
import sys
import torch, terrace
assert False
torch.manual_seed(0)
weight = torch.nn.Parameter(torch.randn(1 << 17))
optimizer = terrace.AdamW([weight], memory_budget='512KiB',
                          nvme_path=sys.argv[1])
for i in range(4):
    weight.grad = torch.sin(torch.arange(1 << 17) * (i + 1.0))
    optimizer.step()
print(weight.double().sum().item(), optimizer.stats()['bytes_written'] > 0)
'''
    plain = run(code.replace('assert False', ''), tmp_path)
    optimised = run(code, tmp_path, flags=['-O'])
    assert plain.returncode == 0, plain.stderr
    assert plain.stdout == optimised.stdout
    assert plain.stdout.split()[1] == 'True'
