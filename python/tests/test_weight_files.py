"""Files of weights that terrace.offload(checkpoint=...) and import_torch are
given: what terrace.save wrote, and what is none."""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap

import pytest
import torch

import terrace

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16,
          torch.complex128, torch.complex64, torch.complex32, torch.int64,
          torch.int32, torch.int16, torch.int8, torch.uint64, torch.uint32,
          torch.uint16, torch.uint8, torch.bool, torch.float8_e4m3fn,
          torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz,
          torch.float8_e8m0fnu]
SHAPES = [(3, 5), (), (0, 2), (1,)]


class Waited(BaseException):
    """Nobody takes it for an error of a file."""


@pytest.fixture
def at_once():
    """A test that waits for a file is ended."""
    def ended(*_):
        raise Waited

    before = signal.signal(signal.SIGALRM, ended)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def on_meta(make, *arguments):
    with torch.device('meta'):
        return make(*arguments)


def bits(tensor):
    return tensor.detach().reshape(-1).clone().view(torch.uint8).tolist()


class Buffers(torch.nn.Module):
    """One of each shape, of that dtype and any bits."""

    def __init__(self, dtype):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        for i, shape in enumerate(SHAPES):
            count = torch.Size(shape).numel()
            values = torch.empty(count, dtype=dtype)
            if values.device.type != 'meta' and count:
                raw = values.view(torch.uint8)
                raw.copy_(torch.randint(0, 2 if dtype == torch.bool else 256,
                                        raw.shape, dtype=torch.uint8))
            self.register_buffer(f'b{i}', values.view(shape))


def parameters_file(folder):
    found, = folder.glob('parameters-*.safetensors')
    return found


@pytest.mark.parametrize('dtype', DTYPES, ids=str)
@pytest.mark.parametrize('given', [parameters_file, lambda folder: folder,
                                   str])
def test_what_save_wrote_is_read(tmp_path, dtype, given):
    plain = Buffers(dtype)
    terrace.save(tmp_path / 'c', plain)
    model = on_meta(Buffers, dtype)
    with terrace.offload(model, checkpoint=given(tmp_path / 'c')):
        for name, value in plain.state_dict().items():
            mine = model.state_dict()[name]
            assert mine.dtype == value.dtype and mine.shape == value.shape
            assert bits(mine) == bits(value), name


def test_names_like_those_of_parts_are_names(tmp_path):
    def make():
        model = torch.nn.Module()
        model.register_buffer('a', torch.ones(3))
        model.add_module('a_', torch.nn.Module())
        model.a_.register_buffer('complex128', torch.full((3, 2), 2.0))
        return model

    terrace.save(tmp_path / 'c', make())
    model = on_meta(make)
    with terrace.offload(model, checkpoint=tmp_path / 'c'):
        assert model.a_.complex128.tolist() == [[2.0, 2.0]] * 3


def offloaded(path):
    terrace.offload(on_meta(torch.nn.Linear, 8, 8), checkpoint=path)


def imported(path):
    terrace.import_torch(path, torch.nn.Linear(8, 8))


BOTH = pytest.mark.parametrize('door', [offloaded, imported])


def refused(door, path, *texts):
    """By a ValueError, at once."""
    with pytest.raises(ValueError) as caught:
        door(path)
    message = str(caught.value)
    assert message.startswith(f'terrace: {path}')
    for text in texts:
        assert text in message


def weights():
    return torch.nn.Linear(8, 8).state_dict()


def test_a_file_of_the_format_before_zip(tmp_path):
    for protocol in (4, 2):
        torch.save(weights(), tmp_path / 'w',
                   _use_new_zipfile_serialization=False,
                   pickle_protocol=protocol)
        refused(offloaded, tmp_path / 'w', 'before torch 1.6',
                'torch.save(torch.load(path), path)')
    imported(tmp_path / 'w')


@BOTH
def test_a_file_that_holds_more(tmp_path, door):
    torch.save({'model': weights(), 'args': argparse.Namespace(lr=1)},
               tmp_path / 'w')
    refused(door, tmp_path / 'w', 'holds a argparse.Namespace',
            'save the state_dict()')


@BOTH
@pytest.mark.filterwarnings('ignore')
def test_an_archive_of_torchscript(tmp_path, door):
    torch.jit.script(torch.nn.Linear(8, 8)).save(tmp_path / 'w')
    refused(door, tmp_path / 'w', 'TorchScript',
            'torch.jit.load(path).state_dict()')


@BOTH
def test_every_beginning_of_a_file(tmp_path, door):
    torch.save(weights(), tmp_path / 'w')
    whole = (tmp_path / 'w').read_bytes()
    for size in (*range(0, len(whole), 97), len(whole) - 1):
        (tmp_path / 'w').write_bytes(whole[:size])
        refused(door, tmp_path / 'w', 'cut')


@BOTH
def test_a_file_that_is_altered_is_refused_or_harmless(tmp_path, door):
    torch.save(weights(), tmp_path / 'w')
    whole = (tmp_path / 'w').read_bytes()
    for place in range(0, len(whole), 41):
        altered = bytearray(whole)
        altered[place] ^= 0xff
        (tmp_path / 'w').write_bytes(altered)
        try:
            door(tmp_path / 'w')
        except (ValueError, RuntimeError) as error:
            assert 'terrace: ' in str(error) or 'state_dict' in str(error)


def test_a_compressed_archive_is_refused(tmp_path):
    import zipfile
    torch.save(weights(), tmp_path / 'w')
    with (zipfile.ZipFile(tmp_path / 'w') as plain,
          zipfile.ZipFile(tmp_path / 'z', 'w', zipfile.ZIP_DEFLATED) as other):
        for name in plain.namelist():
            other.writestr(name, plain.read(name))
    refused(offloaded, tmp_path / 'z', 'is compressed')


def test_lazily_conjugated_tensors_are_not_read_as_they_lie(tmp_path):
    torch.save({'a': torch.randn(3, dtype=torch.complex64).conj()},
               tmp_path / 'w')
    refused(offloaded, tmp_path / 'w', "'a' is quantized, or lazily")


def make_other(kind, path):
    if kind == 'pipe':
        os.mkfifo(path)
    elif kind == 'folder':
        path.mkdir()
    elif kind == 'device':
        path.symlink_to('/dev/zero')
    else:
        before = os.getcwd()
        os.chdir(path.parent)
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(path.name)
        os.chdir(before)


KINDS = pytest.mark.parametrize('kind', ['pipe', 'folder', 'device', 'socket'])


@BOTH
@KINDS
def test_what_is_no_file_is_not_waited_for(tmp_path, door, kind, at_once):
    make_other(kind, tmp_path / 'w')
    if kind == 'folder' and door is offloaded:
        with pytest.raises(FileNotFoundError, match='checkpoint.json'):
            door(tmp_path / 'w')
    else:
        refused(door, tmp_path / 'w', 'is no regular file')


@KINDS
@pytest.mark.parametrize('name', [
    'model.safetensors.index.json', 'part', 'checkpoint.json'])
def test_nor_is_one_that_a_folder_names(tmp_path, kind, name, at_once):
    if name == 'part':
        (tmp_path / 'model.safetensors.index.json').write_text(
            '{"weight_map": {"weight": "part", "bias": "part"}}')
    make_other(kind, tmp_path / name)
    with pytest.raises(ValueError, match=f'{name}: is no regular file'):
        offloaded(tmp_path)


@KINDS
@pytest.mark.parametrize('name', ['checkpoint.json', 'parameters-*',
                                  'optimizer-*', 'values-*'])
def test_nor_is_one_of_a_checkpoint(tmp_path, kind, name, at_once):
    model = torch.nn.Linear(8, 8)
    optimizer = terrace.AdamW(model.parameters())
    model(torch.ones(8)).sum().backward()
    optimizer.step()
    terrace.save(tmp_path / 'c', model, optimizer, values={'t': 'x' * 9000})
    before = model.weight.clone()
    [file] = (tmp_path / 'c').glob(name)
    file.unlink()
    make_other(kind, file)
    with pytest.raises(ValueError, match=f'{file.name}: is no regular file'):
        terrace.load(tmp_path / 'c', model, optimizer)
    assert torch.equal(model.weight, before)


def test_one_that_becomes_a_pipe(tmp_path, at_once):
    terrace.save(tmp_path / 'c', torch.nn.Linear(8, 8))
    file = parameters_file(tmp_path / 'c')

    def replace(_):
        file.unlink()
        os.mkfifo(file)

    model = on_meta(torch.nn.Linear, 8, 8)
    with pytest.raises(ValueError, match='is no regular file'):
        terrace.offload(model, checkpoint=file, init_buffers=replace)
    assert all(p.is_meta for p in model.parameters())


@pytest.mark.parametrize('name', ['../x', '', '/etc/hostname', 3, None, '..'])
def test_a_checkpoint_that_leads_elsewhere(tmp_path, name):
    (tmp_path / 'checkpoint.json').write_text(json.dumps(
        {'checksum': 0, 'checkpoint': {'parameters': {'name': name}}}))
    with pytest.raises((ValueError, FileNotFoundError),
                       match='json: is no checkpoint of Terrace'):
        offloaded(tmp_path)


NESTED = {
    'deep': lambda size: b'[' * (size // 2) + b']' * (size // 2),
    'open': lambda size: b'{"a":' * (size // 5),
    'lists': lambda size: b'[' + b'[],' * (size // 3) + b'0]',
    'objects': lambda size: b'[' + b'{},' * (size // 3) + b'0]',
    'keys': lambda size: b'[' + b'{"":0},' * (size // 7) + b'0]',
    'tenfold': lambda size: (b'[' + (b'[' * 9 + b']' * 9 + b',') * (size // 19)
                             + b'0]')}


@pytest.mark.parametrize('kind', NESTED)
def test_memory_is_that_of_the_text_whatever_it_nests(tmp_path, kind):
    size = 8 << 20
    text = NESTED[kind](size)
    (tmp_path / 'header').write_bytes(len(text).to_bytes(8, 'little') + text)
    (tmp_path / 'folder').mkdir()
    (tmp_path / 'folder' / 'model.safetensors.index.json').write_bytes(
        b'{"weight_map": ' + text + b'}')
    code = '''
        import sys, torch, terrace
        def peak():
            with open('/proc/self/status') as status:
                return next(int(line.split()[1]) << 10 for line in status
                            if line.startswith('VmHWM:'))
        terrace.offload(torch.nn.Linear(8, 8)).close()
        for path in sys.argv[1:]:
            with torch.device('meta'):
                model = torch.nn.Linear(8, 8)
            before = peak()
            try:
                terrace.offload(model, checkpoint=path)
            except ValueError as error:
                assert path in str(error), error
            print(peak() - before)
        '''
    ended = subprocess.run(
        [sys.executable, '-c', textwrap.dedent(code), tmp_path / 'header',
         tmp_path / 'folder'], capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stderr
    assert all(int(grown) < 6 * size for grown in ended.stdout.split())
