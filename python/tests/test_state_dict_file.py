"""state_dict() of state that is larger than memory: its tensors are mapped
from an unnamed file on the path."""

import copy
import errno
import gc
import os
import signal
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist

import terrace
from conftest import batches, model, train
from crew import bits, error_of
from terrace._optimizer import placement
from terrace._state import copy_file
from terrace._state.copy_file import CopyFile
from terrace._state.settings import Settings

SAVING = '''
import sys
import torch, terrace

MIB = 1 << 20

def memory(field):
    with open('/proc/self/status', encoding='ascii') as status:
        line = next(line for line in status if line.startswith(field))
    return int(line.split()[1]) << 10

torch.manual_seed(0)
weights = [torch.nn.Parameter(torch.zeros(2 << 20)) for _ in range(16)]
optimizer = terrace.AdamW(weights, memory_budget='16MiB',
                          nvme_path=sys.argv[1])
for weight in weights:
    weight.grad = torch.randn_like(weight)
optimizer.step()
kept = weights[3].grad.clone()
for weight in weights:
    weight.grad = None
before = memory('VmRSS')
with open('/proc/self/clear_refs', 'w', encoding='ascii') as file:
    file.write('5')
torch.save(optimizer.state_dict(), sys.argv[2])
print((memory('VmHWM') - before) // MIB)

reference = torch.nn.Parameter(torch.zeros_like(kept))
theirs = torch.optim.AdamW([reference])
reference.grad = kept
theirs.step()
saved = torch.load(sys.argv[2], weights_only=True, mmap=True)['state']
print(len(saved) == 16)
for key, value in theirs.state[reference].items():
    print(torch.allclose(saved[3][key], value, rtol=1e-6, atol=0))
'''


def run(code, *arguments):
    return subprocess.run([sys.executable, '-c', code, *map(str, arguments)],
                          capture_output=True, text=True, timeout=240)


def test_torch_save_stays_within_64_mib(tmp_path):
    """256 MiB of state with 16 MiB of memory."""
    if not os.access('/proc/self/clear_refs', os.W_OK):
        pytest.skip('this kernel keeps no peak that can be forgotten')
    disk = tmp_path / 'disk'
    disk.mkdir()
    result = run(SAVING, disk, tmp_path / 'optimizer.pt')
    grown, *same = result.stdout.split()
    assert same == ['True'] * 4, result
    assert int(grown) <= 64
    assert f'to an unnamed file in {disk}: 268.4 MB' in result.stderr
    assert 'terrace.save()' in result.stderr
    assert not list(disk.iterdir())


@pytest.fixture
def mapped(monkeypatch):
    """However little state there is."""
    monkeypatch.setattr(copy_file, '_MAPPED_BYTES', 1)


def mapped_files(folder):
    """How many files without a name are mapped from there."""
    with open('/proc/self/maps', encoding='utf-8') as maps:
        return sum(f' {folder}/' in line and line.endswith(' (deleted)\n')
                   for line in maps)


def strided(dtype=torch.bfloat16):
    """Parameters of all kinds, trained for two steps, and how to train."""
    torch.manual_seed(1)
    weights = [torch.nn.Parameter(w) for w in (
        torch.randn(600_000, dtype=dtype),
        torch.randn(8, 16, 4, 4).to(dtype, memory_format=torch.channels_last),
        torch.randn(300, 70, dtype=dtype).t(), torch.randn((), dtype=dtype),
        torch.randn(0, 5, dtype=dtype), torch.randn(33))]

    def step(optimizer, seed):
        generator = torch.Generator().manual_seed(seed)
        for weight in weights:
            weight.grad = torch.randn(weight.shape, generator=generator).to(
                weight.dtype)
        optimizer.step()

    return weights, step


def assert_same(one, other):
    assert one['param_groups'] == other['param_groups']
    assert one['state'].keys() == other['state'].keys()
    for key, state in one['state'].items():
        assert list(state) == list(other['state'][key])
        for name, tensor in state.items():
            theirs = other['state'][key][name]
            assert tensor.shape == theirs.shape and tensor.is_contiguous()
            assert tensor.dtype == theirs.dtype == torch.float32
            assert torch.equal(tensor, theirs), (key, name)


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_bits_are_those_of_copies_in_memory(dtype, tmp_path, mapped):
    weights, step = strided(dtype)
    optimizer = terrace.AdamW(weights, memory_budget='2MiB',
                              nvme_path=str(tmp_path))
    others, step_other = strided(dtype)
    reference = terrace.AdamW(others)
    for seed in range(2):
        step(optimizer, seed)
        step_other(reference, seed)
    given = optimizer.state_dict()
    assert mapped_files(tmp_path) == 1
    assert_same(given, reference.state_dict())
    if dtype == torch.bfloat16:
        # A master that is not there yet is the parameter.
        for state in given['state'].values():
            state.pop('master_param', None)
        for loaded in (optimizer, reference):
            loaded.load_state_dict(given)
        given = optimizer.state_dict()
        assert_same(given, reference.state_dict())
        assert torch.equal(given['state'][1]['master_param'],
                           weights[1].detach().float())
    # And back, bit for bit.
    optimizer.load_state_dict(given)
    step(optimizer, 3)
    reference.load_state_dict(given)
    step_other(reference, 3)
    assert_same(optimizer.state_dict(), reference.state_dict())


def test_the_tensors_are_their_holders_own(tmp_path, mapped):
    network = model()
    optimizer = terrace.AdamW(network.parameters(), memory_budget='256KiB',
                              nvme_path=str(tmp_path))
    train(network, optimizer, batches(2))
    first, second = optimizer.state_dict(), optimizer.state_dict()
    untouched = copy.deepcopy(second)
    assert mapped_files(tmp_path) == 2
    for state in first['state'].values():
        state['exp_avg'].zero_()
        state['exp_avg_sq'].numpy()[...] = 7
    assert_same(second, untouched)
    assert_same(optimizer.state_dict(), untouched)
    tensor = second['state'][0]['exp_avg']
    before = tensor.clone()
    optimizer.close()
    del optimizer, second
    gc.collect()
    assert not list(tmp_path.iterdir())
    assert mapped_files(tmp_path) == 2  # one for one tensor
    assert torch.equal(tensor, before)
    assert (first['state'][0]['exp_avg'] == 0).all()
    assert (first['state'][0]['exp_avg_sq'] == 7).all()
    grown = tensor.clone().resize_(3)
    tensor.resize_(2 * before.numel(), before.shape[1])  # into memory
    assert torch.equal(tensor[:before.shape[0]], before) and len(grown) == 3
    del tensor, first, state
    gc.collect()
    assert mapped_files(tmp_path) == 0


def test_pages_that_are_given_back_keep_what_was_written(tmp_path):
    """More than may stay mapped, written and read again."""
    count = 24 << 20
    file = CopyFile([str(tmp_path)], [torch.empty(count, device='meta')])
    tensor = file.empty([count])
    for first in range(0, count, 1 << 20):
        tensor[first:first + (1 << 20)] = first
    for first in range(0, count, 1 << 20):
        assert (tensor[first:first + (1 << 20)] == first).all()
    with pytest.raises(MemoryError, match='more than'):
        file.empty([count + 1])


@pytest.mark.parametrize('paths', ['none', 'less'])
def test_little_state_and_state_without_a_path_is_copied_into_memory(
        paths, tmp_path, caplog, monkeypatch):
    network = model()
    settings = {} if paths == 'none' else {
        'memory_budget': '256KiB', 'nvme_path': str(tmp_path)}
    if paths == 'none':
        monkeypatch.setattr(copy_file, '_MAPPED_BYTES', 1)
    optimizer = terrace.AdamW(network.parameters(), **settings)
    train(network, optimizer, batches(2))
    monkeypatch.setattr(placement, '_LARGE_BYTES', 1000)
    with caplog.at_level('INFO', logger='terrace'):
        given = optimizer.state_dict()
    assert caplog.messages[-1].startswith(
        'state_dict() copies the state into memory: ')
    assert 'terrace.save()' in caplog.messages[-1]
    assert given and mapped_files(tmp_path) == 0


def test_a_given_file_has_its_copies_beside_it(tmp_path, mapped):
    given = tmp_path / 'given'
    given.touch()
    network = model()
    optimizer = terrace.AdamW(network.parameters(), memory_budget='256KiB',
                              nvme_path=str(given))
    train(network, optimizer, batches(2))
    state = optimizer.state_dict()
    assert state and mapped_files(tmp_path) == 1
    assert os.listdir(tmp_path) == ['given']
    assert Settings(paths=('/dev/null',)).directories == []
    assert Settings(paths=(str(given), str(tmp_path))).directories == [
        str(tmp_path)]


@pytest.mark.alone
def test_no_room_is_said_with_the_way_out(tmp_path):
    system = os.statvfs(tmp_path)
    free = system.f_bavail * system.f_frsize
    parameters = [torch.empty(free // 4, device='meta')]
    with pytest.raises(OSError, match=r'terrace\.save\(\)') as caught:
        CopyFile([str(tmp_path)], parameters)
    assert caught.value.errno in (errno.ENOSPC, errno.EFBIG)
    assert caught.value.filename == str(tmp_path)
    assert f'{free // 4 * 8} bytes' in str(caught.value)
    assert 'are free' in str(caught.value)
    assert not list(tmp_path.iterdir())


FULL = '''
import resource, signal, sys
import torch, terrace
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
weight = torch.nn.Parameter(torch.zeros(8 << 20))
optimizer = terrace.AdamW([weight], memory_budget='16MiB',
                          nvme_path=sys.argv[1])
weight.grad = torch.ones_like(weight)
optimizer.step()
written = -1  # until what the step leaves to write has been written
while written != (written := optimizer.stats()['bytes_written']):
    optimizer.state_dict()
resource.setrlimit(resource.RLIMIT_FSIZE, (60 << 20, resource.RLIM_INFINITY))
try:
    optimizer.state_dict()
except OSError as error:
    print(error.filename == sys.argv[1], 'terrace.save()' in str(error))
resource.setrlimit(resource.RLIMIT_FSIZE,
                   (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
optimizer.step()  # and goes on
print(optimizer.stats()['steps'])
'''


def test_a_state_dict_without_room_changes_nothing(tmp_path):
    result = run(FULL, tmp_path)
    assert result.stdout.split() == ['True', 'True', '2'], result
    assert not list(tmp_path.iterdir())


def test_the_next_path_is_taken_where_one_cannot_be_mapped(tmp_path, mapped):
    network = model()
    optimizer = terrace.AdamW(network.parameters(), memory_budget='256KiB',
                              nvme_path=str(tmp_path))
    train(network, optimizer, batches(2))
    parameters = list(network.parameters())
    settings = Settings(paths=('/proc', str(tmp_path)))
    assert CopyFile.of(settings, parameters) is not None
    assert CopyFile.of(Settings(paths=('/proc',)), parameters) is None


KILLED = '''
import os, signal, sys
import torch, terrace
from terrace._state import copy_file
copy_file._MAPPED_BYTES = 1
weight = torch.nn.Parameter(torch.zeros(1 << 18))
optimizer = terrace.AdamW([weight], memory_budget='1MiB',
                          nvme_path=sys.argv[1])
weight.grad = torch.ones_like(weight)
optimizer.step()
state = optimizer.state_dict()
child = os.fork()
if child == 0:  # has them too, and ends well
    assert state['state'][0]['exp_avg'].numpy().all()
    del state
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
assert state['state'][0]['exp_avg'].numpy().all()
os.kill(os.getpid(), signal.SIGKILL)
'''


def test_a_killed_process_leaves_none_and_a_forked_child_its_parents(tmp_path):
    result = run(KILLED, tmp_path)
    assert result.returncode == -signal.SIGKILL, result
    # The optimizer's own folder, which its next start removes.
    assert [name.startswith('terrace-') for name in os.listdir(tmp_path)] == [
        True], result


def collect(path):
    """What of a consolidated state_dict() is mapped at each rank, whether a
    rank without room tells all, and the bits."""
    before, copy_file._MAPPED_BYTES = copy_file._MAPPED_BYTES, 1
    try:
        torch.manual_seed(5)
        weights = [torch.nn.Parameter(torch.randn(50 + i).bfloat16())
                   for i in range(6)]
        optimizer = terrace.AdamW(weights, nvme_path=path,
                                  memory_budget='1MiB',
                                  process_group=dist.group.WORLD)
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        optimizer.step()

        class Full(CopyFile):
            def __init__(self, directories, parameters):
                raise OSError(errno.ENOSPC, 'full', path)

        copy_file.CopyFile = Full
        try:
            refused = error_of(optimizer.consolidate_state_dict)[:2]
        finally:
            copy_file.CopyFile = CopyFile
        optimizer.consolidate_state_dict()
        whole = optimizer.state_dict()
        files = mapped_files(path)
        values = [bits(state.values()) for state in whole['state'].values()]
        optimizer.close()
        return refused, files, values
    finally:
        copy_file._MAPPED_BYTES = before


def test_collected_state_is_mapped_too(crew, tmp_path):
    first, second = crew.run(collect, str(tmp_path))
    assert first[0] == ('OSError', f"[Errno 28] full: '{tmp_path}'")
    assert second[0][0] == 'RankError' and 'full' in second[0][1]
    assert (first[1], second[1]) == (2, 1)
    assert len(first[2]) == 6 and len(second[2]) == 3
    torch.manual_seed(5)
    weights = [torch.nn.Parameter(torch.randn(50 + i).bfloat16())
               for i in range(6)]
    alone = terrace.AdamW(weights)
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    alone.step()
    assert first[2] == [bits(state.values())
                        for state in alone.state_dict()['state'].values()]
