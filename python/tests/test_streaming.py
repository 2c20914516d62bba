"""What is in memory while models come and go: a block of it, whatever lies
where, on whatever device."""

import os
import subprocess
import sys
import zipfile

import pytest
import torch

import terrace
from conftest import batches, largest_difference, model, train
from terrace._base import library
from terrace._files import torch_format
from terrace._state import transfer


def layouts():
    """Tensors that fill their memory in another order, or do not fill it."""
    values = torch.arange(4096.0)
    image = torch.randn(8, 16, 4, 4).to(memory_format=torch.channels_last)
    return {
        'plain': values.clone(),
        'tied': values[:100],
        'tied again': values[:100],
        'transposed': torch.randn(60, 70).t(),
        'channels last': image,
        'a part': torch.randn(50, 50)[3:40, 5:30],
        'every third': torch.arange(3000)[::3],
        'expanded': torch.randn(7, 1).expand(7, 300),
        'conjugate': torch.randn(30, 40, dtype=torch.complex64).conj(),
        'scalar': torch.tensor(3.0, dtype=torch.bfloat16),
        'nothing': torch.empty(0, 5),
        'flags': torch.arange(4000) % 3 == 0,
    }


def test_any_tensor_is_exported_a_block_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(torch_format, '_BLOCK', 1000)
    monkeypatch.setattr(torch_format, '_PIECE', 300)
    to_host, sizes = torch_format._to_host, []

    def counted(part, *rest):
        sizes.append(part.numel())
        return to_host(part, *rest)

    monkeypatch.setattr(torch_format, '_to_host', counted)
    tensors = layouts()
    terrace.export_torch(tmp_path / 'file.pt', values=tensors)
    assert max(sizes) == 1000
    loaded = torch.load(tmp_path / 'file.pt', weights_only=True)['values']
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype
        assert torch.equal(loaded[name], tensor), name
    assert loaded['channels last'].is_contiguous(
        memory_format=torch.channels_last)
    loaded['tied'][0] = 5
    assert loaded['tied again'][0] == 5


def test_order_is_kept_where_torch_must_be_deterministic(tmp_path):
    def make():
        return torch.nn.ParameterList([
            torch.nn.Parameter(t) for t in layouts().values()
            if t.is_floating_point() and t.numel() and t.stride()[-1:] != (0,)])

    saved, loaded = make(), make()
    assert any(not p.is_contiguous() for p in saved)
    with torch.no_grad():
        for parameter in loaded:
            parameter.fill_(7)
    torch.use_deterministic_algorithms(True)
    try:
        terrace.save(tmp_path / 'run', saved)
        terrace.load(tmp_path / 'run', loaded)
    finally:
        torch.use_deterministic_algorithms(False)
    for a, b in zip(saved, loaded, strict=True):
        assert torch.equal(a, b) and a.stride() == b.stride()


class Counted:
    """A compiled optimizer that notes how much state it is given at once."""

    def __init__(self, native):
        self._native, self.sizes = native, []

    def __getattr__(self, name):
        return getattr(self._native, name)

    def write(self, position, offset, *arrays):
        self.sizes += [array.numel() for array in arrays]
        return self._native.write(position, offset, *arrays)


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_state_is_taken_over_a_range_at_a_time(tier, dtype, tmp_path,
                                               monkeypatch):
    network = model(dtype=dtype)
    optimizer = terrace.AdamW(network.parameters())
    data = batches(4, dtype=dtype)
    train(network, optimizer, data[:2])
    terrace.export_torch(tmp_path / 'run.pt', network, optimizer)
    monkeypatch.setattr(transfer, '_RANGE', 1000)
    made = []

    def new():
        made.append(Counted(_library_new()))
        return made[-1]

    _library_new = library.new_optimizer
    monkeypatch.setattr(library, 'new_optimizer', new)
    other = model(dtype=dtype, seed=1)
    resumed = terrace.AdamW(other.parameters(), **tier)
    terrace.import_torch(tmp_path / 'run.pt', other, resumed)
    kinds = 2 if dtype == torch.float32 else 3
    assert sum(made[0].sizes) == kinds * sum(
        p.numel() for p in network.parameters())
    assert max(made[0].sizes) == 1000
    train(network, optimizer, data[2:])
    train(other, resumed, data[2:])
    assert largest_difference(network, other) == 0


@pytest.mark.parametrize('mapped', [False, True])
def test_a_file_of_more_than_4_gib_in_small(tmp_path, monkeypatch, mapped):
    """The zip64 records that sizes and offsets beyond 4 GiB take, made to
    begin at 1000 bytes, are read by torch and by others."""
    network = model()
    optimizer = terrace.AdamW(network.parameters())
    train(network, optimizer, batches(2))
    with monkeypatch.context() as patched:
        patched.setattr(zipfile, 'ZIP64_LIMIT', 1000)
        size = terrace.export_torch(tmp_path / 'run.pt', network, optimizer)
    content = (tmp_path / 'run.pt').read_bytes()
    assert size == len(content) > 1000
    assert b'PK\6\6' in content[-200:] and b'PK\6\7' in content[-200:]
    loaded = torch.load(tmp_path / 'run.pt', weights_only=True, mmap=mapped)
    for name, value in network.state_dict().items():
        assert torch.equal(loaded['model'][name], value)
    other = torch.optim.AdamW(model().parameters())
    other.load_state_dict(loaded['optimizer'])
    assert zipfile.ZipFile(tmp_path / 'run.pt').testzip() is None


@pytest.mark.skipif('TERRACE_TEST_LARGE' not in os.environ,
                    reason='takes 5 GB of disk and a minute; '
                           'TERRACE_TEST_LARGE=1 asks for it')
def test_a_file_of_more_than_4_gib(tmp_path):
    large = torch.tensor([2.5]).expand(1_200_000_000)  # 4.8 GB, in 4 bytes
    small = torch.arange(1000)
    size = terrace.export_torch(tmp_path / 'file.pt',
                                values={'large': large, 'small': small})
    assert size > 1 << 32
    loaded = torch.load(tmp_path / 'file.pt', weights_only=True, mmap=True)
    assert torch.equal(loaded['values']['small'], small)
    assert len(loaded['values']['large']) == len(large)
    for part in loaded['values']['large'][::100_000_000], (
            loaded['values']['large'][-1000:]):
        assert (part == 2.5).all()


# Parameters of 32 MiB that have no address in CPU memory, or out of order.
LARGE = '''
import os, sys
import torch, terrace

def make(rows, columns):
    module = torch.nn.Module()
    for name in 'abcd':
        weight = torch.randn(rows, columns, device=sys.argv[2])
        if sys.argv[2] == 'cpu' or name in 'ab':
            weight = weight.t()
        module.register_parameter(name, torch.nn.Parameter(weight))
    return module

def memory(field):
    with open('/proc/self/status') as status:
        return next(int(line.split()[1]) for line in status
                    if line.startswith(field)) << 10

def peak_of(work):
    with open('/proc/self/clear_refs', 'w') as file:
        file.write('5')
    before = memory('VmRSS:')
    work()
    return (memory('VmHWM:') - before) / 2**20

def save(): terrace.save(sys.argv[1] + '/run', saved)
def load(): terrace.load(sys.argv[1] + '/run', loaded)
def export(): terrace.export_torch(sys.argv[1] + '/run.pt', loaded)

saved, loaded = make(4096, 2048), make(4096, 2048)
small = make(64, 32)  # what is made once: kernels of a GPU, too
terrace.save(sys.argv[1] + '/small', small)
terrace.load(sys.argv[1] + '/small', small)
terrace.export_torch(sys.argv[1] + '/small.pt', small)
print(*(peak_of(work) for work in (save, load, export)))
content = torch.load(sys.argv[1] + '/run.pt', weights_only=True)['model']
print(all(torch.equal(saved.get_parameter(name).cpu(), weight)
          for name, weight in content.items()))
'''


@pytest.mark.parametrize('device', ['cpu', pytest.param(
    'cuda', marks=[pytest.mark.cuda, pytest.mark.skipif(
        not torch.cuda.is_available(), reason='no CUDA device here')])])
def test_parameters_are_not_copied_whole(device, tmp_path):
    result = subprocess.run(
        [sys.executable, '-c', LARGE, str(tmp_path), device],
        capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    peaks, same = result.stdout.splitlines()
    assert same == 'True'
    assert max(map(float, peaks.split())) <= 32, peaks
