"""Checkpoints of tensors of every dtype, and of large values."""

import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import terrace
from terrace._state.compiled import Compiled

# What safetensors has, by the names of its own package.
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16,
          torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
          torch.uint16, torch.uint32, torch.uint64, torch.bool,
          torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz,
          torch.float8_e5m2fnuz, torch.complex64]
OTHERS = [torch.complex128, torch.complex32, torch.float8_e8m0fnu]


def bits(tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).clone()


def random_of(dtype, seed, *shape):
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) < 0.5
    width = torch.empty(0, dtype=dtype).element_size()
    data = torch.randint(0, 255, (*shape[:-1], shape[-1] * width),
                         generator=generator, dtype=torch.uint8)
    return data.view(dtype)


def of_every_dtype(seed):
    module = torch.nn.Module()
    for dtype in DTYPES + OTHERS:
        name = 'of_' + str(dtype).removeprefix('torch.')
        tensor = random_of(dtype, seed, 5, 4)
        module.register_buffer(name, tensor)
        module.register_buffer(f'{name}_turned', tensor.clone().t())
        module.register_buffer(f'{name}_scalar', tensor[0, 0].clone())
    return module


def json_of(directory):
    with open(directory / 'checkpoint.json', encoding='utf-8') as file:
        return json.load(file)['checkpoint']


def test_every_dtype_of_safetensors_is_a_tensor_in_the_file(tmp_path):
    from safetensors.torch import load_file
    saved, loaded = of_every_dtype(1), of_every_dtype(2)
    terrace.save(tmp_path / 'run', saved)
    [path] = (tmp_path / 'run').glob('parameters-*.safetensors')
    tensors = load_file(path)
    for name, value in saved.state_dict().items():
        if value.dtype in OTHERS:
            name = f'{name}.{str(value.dtype).removeprefix("torch.")}'
        else:
            assert tensors[name].dtype == value.dtype, name
            assert tensors[name].shape == value.shape, name
        assert torch.equal(bits(tensors[name]), bits(value)), name
    terrace.load(tmp_path / 'run', loaded)
    for name, value in saved.state_dict().items():
        assert torch.equal(bits(value), bits(loaded.state_dict()[name])), name


def test_what_cannot_be_streamed_comes_back(tmp_path):
    def make(value):
        module = torch.nn.Module()
        whole = torch.tensor([value + 1j, value - 2j])
        module.register_buffer('lazy', whole.conj())
        module.register_buffer('sparse', torch.tensor(
            [[0, value], [0, 0]]).to_sparse())
        module.register_buffer('weights', torch.tensor(
            [[0., value + 0.5], [0., 0.]]).to_sparse())
        module.register_buffer('quantized', torch.quantize_per_tensor(
            torch.tensor([1., value]), 0.1, 0, torch.qint8))
        return module
    saved, loaded = make(3), make(5)
    terrace.save(tmp_path / 'run', saved)
    terrace.load(tmp_path / 'run', loaded)
    assert torch.equal(loaded.lazy, saved.lazy)
    for name in ('sparse', 'weights'):
        assert torch.equal(getattr(loaded, name).to_dense(),
                           getattr(saved, name).to_dense()), name
    assert torch.equal(loaded.quantized.dequantize(),
                       saved.quantized.dequantize())
    del loaded.quantized
    with pytest.raises(ValueError, match='quantized'):
        terrace.load(tmp_path / 'run', loaded)


def test_a_buffer_of_another_dtype_is_another_model(tmp_path):
    module, other = torch.nn.Module(), torch.nn.Module()
    module.register_buffer('mask', torch.ones(3, dtype=torch.bool))
    other.register_buffer('mask', torch.zeros(3, dtype=torch.uint8))
    terrace.save(tmp_path / 'run', module)
    with pytest.raises(ValueError, match=r'bool \[3\].*uint8 \[3\]'):
        terrace.load(tmp_path / 'run', other)
    assert not other.mask.any()


def test_bytes_are_not_in_the_json(tmp_path):
    module = torch.nn.Linear(2, 2)
    module.register_buffer('mask', torch.rand(1 << 20) < 0.5)
    values = {'seen': torch.arange(1 << 17), 'text': 'x' * 100_000}
    terrace.save(tmp_path / 'run', module, values=values)
    assert (tmp_path / 'run' / 'checkpoint.json').stat().st_size < 4096
    loaded = terrace.load(tmp_path / 'run', module)
    assert torch.equal(loaded['seen'], values['seen'])
    assert loaded['text'] == values['text']


MEASURED = '''
import ctypes, sys, torch, terrace
module = torch.nn.Module()
module.register_buffer('mask', torch.ones(200 << 20, dtype=torch.bool))
def memory(field):
    with open('/proc/self/status', encoding='ascii') as status:
        line = next(line for line in status if line.startswith(field))
    return int(line.split()[1]) >> 10
def measured(work):
    ctypes.CDLL(None).malloc_trim(0)
    with open('/proc/self/clear_refs', 'w', encoding='ascii') as file:
        file.write('5')
    before = memory('VmRSS')
    work()
    return memory('VmHWM') - before
terrace.save(sys.argv[1] + '/first', torch.nn.Linear(2, 2))
print(measured(lambda: terrace.save(sys.argv[1] + '/run', module)),
      measured(lambda: terrace.load(sys.argv[1] + '/run', module)))
'''


def test_a_large_bool_buffer_takes_a_few_blocks_of_memory(tmp_path):
    """A process of its own, whose memory no other test grows."""
    result = subprocess.run(
        [sys.executable, '-P', '-c', MEASURED, str(tmp_path)], check=False,
        capture_output=True, text=True, timeout=120)
    if 'clear_refs' in result.stderr:
        pytest.skip('the peak cannot be reset here')
    assert result.returncode == 0, result.stderr
    saving, loading = map(int, result.stdout.split()[-2:])
    print(f'MiB more in a save: {saving}, in a load: {loading}')
    assert saving <= 40 and loading <= 40


class OfVersion1(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(2, 3))
        self.register_buffer('mask', torch.zeros(3, dtype=torch.bool))
        self.register_buffer('count', torch.tensor(0))
        self.register_buffer('mean', torch.zeros(2).bfloat16())
        self.register_buffer('phase', torch.zeros(2, dtype=torch.complex64))
        self.register_buffer('wide', torch.zeros(1, dtype=torch.complex128))


def test_a_checkpoint_of_version_1_loads(tmp_path):
    """As it was written then, after a step of 0.5 with a gradient of ones."""
    run = tmp_path / 'run'
    shutil.copytree(Path(__file__).parent / 'version_1', run)
    module = OfVersion1()
    optimizer = terrace.AdamW(module.parameters())
    values = terrace.load(run, module, optimizer)
    assert values['epoch'] == 3
    assert torch.equal(values['order'], torch.arange(4))
    assert torch.equal(module.mask, torch.tensor([True, False, True]))
    assert module.count == 41
    assert torch.equal(module.mean, torch.tensor([0.5, 0.25]).bfloat16())
    assert torch.equal(module.phase, torch.tensor([1 + 2j, 3 - 4j]))
    assert module.wide[0] == 5 - 6j
    torch.testing.assert_close(module.weight.detach()[0],
                               torch.tensor([-0.5, 0.495, 1.49]))
    assert optimizer.param_groups[0]['lr'] == 0.5
    assert optimizer.state[module.weight]['exp_avg'][1, 2] == pytest.approx(0.1)

    terrace.save(run, module, optimizer)
    assert json_of(run)['version'] == 2
    again = OfVersion1()
    terrace.load(run, again, terrace.AdamW(again.parameters()))
    assert again.count == 41 and again.wide[0] == 5 - 6j


def test_version_1_has_dtypes_that_are_in_parts_now(tmp_path):
    """As it was written then: they are pickled, and there is no layout."""
    class Waves(torch.nn.Module):
        def __init__(self, seed):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.full((3,), float(seed)))
            for dtype in OTHERS:
                self.register_buffer(str(dtype).removeprefix('torch.'),
                                     random_of(dtype, seed, 2, 3))

    saved, loaded, rest = Waves(1), Waves(2), io.BytesIO()
    torch.save({'others': dict(saved.named_buffers()), 'groups': [],
                'random': torch.get_rng_state(), 'random_of_gpus': [],
                'values': {}, 'objects': {}}, rest)
    Compiled().checkpoint.save(
        str(tmp_path / 'run'), [saved.weight], ['weight'], [-1],
        torch.frombuffer(rest.getbuffer(), dtype=torch.uint8))
    terrace.load(tmp_path / 'run', loaded)
    for name, value in saved.state_dict().items():
        assert torch.equal(bits(value), bits(loaded.state_dict()[name])), name


def test_a_model_with_another_buffer_than_version_1_is_refused(tmp_path):
    run = tmp_path / 'run'
    shutil.copytree(Path(__file__).parent / 'version_1', run)
    module = OfVersion1()
    module.register_buffer('more', torch.zeros(1, dtype=torch.int64))
    with pytest.raises(ValueError, match='more'):
        terrace.load(run, module)
