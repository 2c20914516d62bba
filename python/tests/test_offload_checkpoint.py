"""terrace.offload(checkpoint=...): weights come from files straight below."""

import json
import os
import subprocess
import sys
import textwrap

import pytest
import torch

import terrace
from offloaded import (check_equal_values, check_same, is_cold,
                       mlp, mlp_loss, token_loss, train, transformer, values)

safetensors = pytest.importorskip('safetensors.torch')


def on_meta(make, *arguments, **named):
    with torch.device('meta'):
        return make(*arguments, **named)


def write_file(model, folder):
    file = folder / 'weights.safetensors'
    safetensors.save_model(model, str(file))
    return file


def write_torch(model, folder):
    torch.save(model.state_dict(), folder / 'weights.pt')
    return folder / 'weights.pt'


def write_within(model, folder):
    torch.save({'step': 3, 'model': model.state_dict()}, folder / 'all.pt')
    return folder / 'all.pt'


def write_folder(model, folder):
    write_file(model, folder).rename(folder / 'model.safetensors')
    return folder


def write_index(model, folder):
    """Two files; a name that is tied is in one of them."""
    parts = ({}, {})
    for i, (name, value) in enumerate(model.named_parameters()):
        parts[i % 2][name] = value.detach().contiguous()
    places = {}
    for i, part in enumerate(parts):
        safetensors.save_file(part, str(folder / f'part{i}.safetensors'))
        places |= dict.fromkeys(part, f'part{i}.safetensors')
    (folder / 'model.safetensors.index.json').write_text(
        json.dumps({'weight_map': places}))
    return folder


def test_ties_that_the_model_knows_are_asked_for(tmp_path):
    """As after accelerate.init_empty_weights, which makes each by itself."""
    plain = transformer()
    file = write_file(plain, tmp_path)
    model = on_meta(transformer)
    model.head.weight = torch.nn.Parameter(
        torch.empty_like(model.embedding.weight))
    model.tie_weights = lambda: setattr(model.head, 'weight',
                                        model.embedding.weight)
    with terrace.offload(model, memory_budget='40%', checkpoint=file,
                         nvme_path=str(tmp_path)):
        assert model.head.weight is model.embedding.weight
        check_equal_values(values(model), values(plain))


@pytest.mark.parametrize('write', [write_file, write_torch, write_within,
                                   write_folder, write_index])
@pytest.mark.parametrize('as_path', [str, lambda path: path])
def test_it_trains_as_one_that_was_loaded(tmp_path, write, as_path):
    plain = transformer()
    file = write(plain, tmp_path)
    (tmp_path / 'below').mkdir()
    model = on_meta(transformer)
    with terrace.offload(model, memory_budget='40%',
                         nvme_path=str(tmp_path / 'below'),
                         checkpoint=as_path(file)) as offload:
        assert model.head.weight is model.embedding.weight
        assert [p.requires_grad for p in model.parameters()] == [
            p.requires_grad for p in plain.parameters()]
        check_same(train(model, token_loss), train(plain, token_loss))
        stats = offload.stats()
        assert stats['managed_bytes'] == stats['parameter_bytes']
        assert stats['memory_peak_bytes'] <= stats['budget_bytes']
        assert stats['budget_bytes'] < stats['parameter_bytes']
    check_equal_values(values(model), values(plain))
    assert not any(map(is_cold, model.parameters()))


@pytest.mark.parametrize('stored', [torch.float32, torch.bfloat16,
                                    torch.float16, torch.float64])
@pytest.mark.parametrize('write', [write_file, write_torch])
def test_the_dtype_is_the_models(tmp_path, stored, write):
    file = write(mlp(dtype=stored), tmp_path)
    model = on_meta(mlp, dtype=torch.bfloat16)
    with terrace.offload(model, checkpoint=file):
        for mine, theirs in zip(model.parameters(),
                                mlp(dtype=stored).parameters()):
            assert mine.dtype == torch.bfloat16
            assert torch.equal(mine, theirs.to(torch.bfloat16))


def test_strides_of_the_model_stay(tmp_path):
    def build():
        model = torch.nn.Module()
        model.turned = torch.nn.Parameter(torch.randn(40, 30).T)
        model.number = torch.nn.Parameter(torch.tensor(1.5))
        model.nothing = torch.nn.Parameter(torch.zeros(0, 3))
        return model

    plain = build()
    torch.save({name: value.detach().contiguous() for name, value
                in plain.state_dict().items()}, tmp_path / 'file')
    model = on_meta(build)
    with terrace.offload(model, checkpoint=tmp_path / 'file'):
        assert model.turned.stride() == (1, 30)
        check_equal_values(values(model), values(plain))


class Buffered(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.part = torch.nn.Sequential(torch.nn.Linear(8, 8),
                                        torch.nn.BatchNorm1d(8))
        self.register_buffer('table', torch.arange(8.), persistent=False)

    def forward(self, inputs):
        return self.part(inputs) * self.table


def test_buffers_of_the_file_and_of_init_buffers(tmp_path):
    plain = Buffered()
    plain(torch.randn(5, 8))  # running statistics
    file = write_file(plain, tmp_path)
    with pytest.raises(ValueError, match=r'no table, .* by init_buffers='):
        terrace.offload(on_meta(Buffered), checkpoint=file)
    model = on_meta(Buffered)

    def init(given):
        assert given is model
        given.table = torch.arange(8.)

    with terrace.offload(model, checkpoint=file, init_buffers=init):
        assert dict(model.named_buffers()).keys() == dict(
            plain.named_buffers()).keys()
        for mine, theirs in zip(model.buffers(), plain.buffers()):
            assert torch.equal(mine, theirs) and mine.dtype == theirs.dtype
        assert list(model.state_dict()) == list(plain.state_dict())
        inputs = torch.randn(4, 8)
        assert torch.equal(model(inputs), plain(inputs))


def test_init_empty_weights_of_accelerate(tmp_path):
    accelerate = pytest.importorskip('accelerate')
    plain = Buffered()
    plain(torch.randn(5, 8))
    file = write_torch(plain, tmp_path)
    with accelerate.init_empty_weights():
        model = Buffered()
    with terrace.offload(model, checkpoint=file):
        inputs = torch.randn(4, 8)
        assert torch.equal(model(inputs), plain(inputs))
        for mine, theirs in zip(model.buffers(), plain.buffers()):
            assert torch.equal(mine, theirs)


def test_what_does_not_fit_is_named_and_nothing_is_made(tmp_path):
    content = mlp().state_dict()
    del content['0.weight'], content['4.bias']
    content['2.weight'] = torch.zeros(3, 5)
    content['other'] = content['more'] = torch.zeros(2)
    safetensors.save_file(
        {name: value.clone() for name, value in content.items()},
        str(tmp_path / 'file'))
    (tmp_path / 'below').mkdir()
    model = on_meta(mlp)
    with pytest.raises(ValueError) as raised:
        terrace.offload(model, memory_budget='40%', checkpoint=tmp_path / 'file',
                        nvme_path=str(tmp_path / 'below'))
    text = str(raised.value)
    assert str(tmp_path / 'file') in text
    assert 'missing 0.weight, 4.bias' in text
    assert 'unexpected more, other' in text
    assert 'misshapen 2.weight of (3, 5) for (128, 128)' in text
    assert os.listdir(tmp_path / 'below') == []
    assert all(p.is_meta for p in model.parameters())


def test_a_model_that_has_values(tmp_path):
    with pytest.raises(ValueError, match="'0.weight' is on cpu already"):
        terrace.offload(mlp(), checkpoint=write_torch(mlp(), tmp_path))


def cut(file, size):
    os.truncate(file, size)
    return file


def spoilt(folder, name, data):
    (folder / name).write_bytes(data)
    return folder / name


def header(text):
    return len(text).to_bytes(8, 'little') + text


def two(*entries):
    """Of two float32 each, from one byte to another; the bytes of the data."""
    *tensors, size = entries
    text = ', '.join(f'"{name}": {{"dtype": "F32", "shape": [2], '
                     f'"data_offsets": [{first}, {end}]}}'
                     for name, first, end in tensors)
    return header(f'{{{text}}}'.encode()) + bytes(size)


def leads_to(folder, file):
    """An index, in a folder of it; the file that it leads to is there."""
    write_folder(mlp(), folder)
    (folder / 'inner').mkdir()
    return spoilt(folder / 'inner', 'model.safetensors.index.json', json.dumps(
        {'weight_map': {'a': file}}).encode()).parent


@pytest.mark.parametrize('make, kind, text', [
    (lambda f: f / 'none', FileNotFoundError, 'none'),
    (lambda f: f, FileNotFoundError, 'model.safetensors and checkpoint.json'),
    (lambda f: spoilt(f, 'x', b''), ValueError, 'is cut: it has 0 bytes'),
    (lambda f: spoilt(f, 'x', b'\xff' * 90), ValueError,
     'its header would have 18446744073709551615 bytes'),
    (lambda f: spoilt(f, 'x', header(b'')), ValueError, 'no JSON object'),
    (lambda f: spoilt(f, 'x', header(b'[1]')), ValueError, 'no JSON object'),
    (lambda f: spoilt(f, 'x', header(b'{"a": {"dtype": "F4"}}')), ValueError,
     "'a' lacks dtype, shape or data_offsets"),
    (lambda f: spoilt(f, 'x', header(
        b'{"a": {"dtype": "F4", "shape": [2], "data_offsets": [0, 1]}}')),
     ValueError, "'a' has dtype \"F4\", which is none of F32"),
    (lambda f: spoilt(f, 'x', header(
        b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 9]}}')),
     ValueError, r"'a' is fp32 \[2\] in 9 bytes"),
    (lambda f: cut(write_file(mlp(), f), 99_999), ValueError,
     'has 99999 bytes of'),
    (lambda f: cut(write_torch(mlp(), f), 99_999), ValueError, 'neither'),
    (lambda f: spoilt(f, 'model.safetensors.index.json', b'{}').parent,
     ValueError, 'no index of weights'),
    (lambda f: spoilt(f, 'model.safetensors.index.json',
                      b'{"weight_map": {"a": "gone"}}').parent,
     FileNotFoundError, 'gone'),
    (lambda f: spoilt(f, 'x', two(('a', 0, 8), ('b', 12, 20), 20)), ValueError,
     "'b' is at data offset 12, the one before it ends at 8"),
    (lambda f: spoilt(f, 'x', two(('a', 0, 8), ('b', 4, 12), 12)), ValueError,
     "'b' is at data offset 4, the one before it ends at 8"),
    (lambda f: spoilt(f, 'x', two(('a', 4, 12), ('b', 12, 20), 20)), ValueError,
     "'a' is at data offset 4, the one before it ends at 0"),
    (lambda f: spoilt(f, 'x', two(('a', 0, 8), ('b', 8, 16), 20)), ValueError,
     'and its header is of'),
    (lambda f: spoilt(f, 'x', two(('a', 0, 8), ('a', 0, 8), 8)), ValueError,
     "the key 'a' twice"),
    (lambda f: spoilt(f, 'x', header(b'{"a": {"dtype": "F32", "shape": '
                                     b'[-1, -2], "data_offsets": [0, 8]}}')),
     ValueError, "'a' has a shape that is no list of sizes"),
    (lambda f: spoilt(f, 'x', header(b'{"a": {"dtype": "F32", "shape": '
                                     b'[2], "data_offsets": [-8, 0]}}')),
     ValueError, "'a' has data_offsets that are not two offsets"),
    (lambda f: spoilt(f, 'x', header(b'[' * 200_000)), ValueError,
     'nested too deep'),
    (lambda f: leads_to(f, '../model.safetensors'), ValueError,
     'tensor \'a\' is in "../model.safetensors", which is no name of a '
     'file'),
    (lambda f: leads_to(f, '/etc/hostname'), ValueError, 'no name of a file'),
    (lambda f: leads_to(f, '..'), ValueError, 'no name of a file'),
    (lambda f: leads_to(f, ['b']), ValueError, 'no name of a file'),
    (lambda f: spoilt(f, 'model.safetensors.index.json',
                      b'{"weight_map": {"a": "b", "a": "c"}}').parent,
     ValueError, "the key 'a' twice"),
])
def test_files_that_are_none(tmp_path, make, kind, text):
    model = on_meta(mlp)
    with pytest.raises(kind, match=text) as raised:
        terrace.offload(model, checkpoint=make(tmp_path))
    assert 'terrace: ' in str(raised.value)
    assert all(p.is_meta for p in model.parameters())


def test_an_index_that_names_more_than_its_files_have(tmp_path):
    write_index(mlp(), tmp_path)
    index = tmp_path / 'model.safetensors.index.json'
    content = json.loads(index.read_text())
    content['weight_map']['lost'] = 'part1.safetensors'
    index.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="has not: .*'lost'|not: 'lost'"):
        terrace.offload(on_meta(mlp), checkpoint=tmp_path)


def test_tensors_that_are_not_contiguous_in_a_file_of_torch(tmp_path):
    content = mlp().state_dict()
    content['4.weight'] = content['4.weight'].T
    torch.save(content, tmp_path / 'file')
    with pytest.raises(ValueError, match="'4.weight' is not contiguous there"):
        terrace.offload(on_meta(mlp), checkpoint=tmp_path / 'file')


def test_a_file_that_becomes_shorter_leaves_the_model_as_it_was(tmp_path):
    file = write_file(mlp(), tmp_path)
    model = on_meta(mlp)

    def shorten(_):
        os.truncate(file, 100_000)

    with pytest.raises(OSError, match='the file has no byte 1') as raised:
        terrace.offload(model, checkpoint=file, init_buffers=shorten)
    assert raised.value.filename == str(file)
    assert all(p.is_meta for p in model.parameters())


def test_memory_is_the_budget_and_not_the_model(tmp_path):
    """96 MB of weights within 24 MB, in a process that may have 40 MB more
    than before."""
    layers, width = 24, 1000
    code = '''
        import sys
        import torch, terrace
        from test_offload_checkpoint import wide
        with torch.device('meta'):
            model = wide(24)
        inputs = torch.ones(2, 1000)
        torch.nn.Linear(1000, 1000)(inputs)
        def peak():
            with open('/proc/self/status') as status:
                return next(int(line.split()[1]) << 10 for line in status
                            if line.startswith('VmHWM:'))
        other = torch.nn.Linear(3, 3)
        with terrace.offload(other):  # modules of torch are imported
            other(torch.zeros(3)).detach().numpy()
        before = peak()
        terrace.offload(model, memory_budget='24 MB', nvme_path=sys.argv[2],
                        checkpoint=sys.argv[1])
        with torch.no_grad():
            print(float(model(inputs).sum()))
        print(peak() - before)
        '''
    plain = wide(layers)
    file = write_file(plain, tmp_path)
    (tmp_path / 'below').mkdir()
    ended = subprocess.run(
        [sys.executable, '-c', textwrap.dedent(code), str(file),
         str(tmp_path / 'below')], capture_output=True, text=True, timeout=240,
        cwd=os.path.dirname(__file__))
    assert ended.returncode == 0, ended.stderr
    total, more = map(float, ended.stdout.split())
    with torch.no_grad():
        assert total == float(plain(torch.ones(2, width)).sum())
    assert more < 40e6


def wide(layers):
    torch.manual_seed(5)
    return torch.nn.Sequential(*(torch.nn.Linear(1000, 1000)
                                 for _ in range(layers)))
