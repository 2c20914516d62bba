"""Files of torch.save that others packed anew, or that hold more than plain
tensors: they are read as torch reads them, or refused before anything is
changed."""

import random
import zipfile

import pytest
import torch

import terrace


def on_meta(tensors):
    module = torch.nn.Module()
    for name, value in tensors.items():
        module.register_parameter(name, torch.nn.Parameter(
            torch.empty(value.shape, dtype=value.dtype, device='meta'),
            requires_grad=False))
    return module


def in_memory(tensors):
    return on_meta(tensors).to_empty(device='cpu')


def check_reads(path, tensors):
    """As torch.load does, an independent reader."""
    expected = torch.load(path, weights_only=True)
    module = on_meta(tensors)
    with terrace.offload(module, checkpoint=path, memory_budget='64MiB'):
        for name, parameter in module.named_parameters():
            assert torch.equal(parameter.detach().clone(), expected[name]), name


def packed_anew(source, target, order=list, **how):
    with (zipfile.ZipFile(source) as old,
          zipfile.ZipFile(target, 'w', zipfile.ZIP_STORED, **how) as new):
        for record in order(old.infolist()):
            new.writestr(record.filename, old.read(record))


def of_sizes(*sizes):
    return {f't{i}': torch.full((size,), float(i + 1))
            for i, size in enumerate(sizes)}


def by_name(records):
    """The folder's file comes first: torch takes the archive's name of it."""
    return sorted(records, key=lambda record: record.filename)


def mixed(records):
    first, *others = records
    random.Random(3).shuffle(others)
    return [first, *others]


@pytest.mark.parametrize('sizes', [
    (5, 7, 3), (4,) * 12, (0, 3, 0, 1000, 1), (6,)])
@pytest.mark.parametrize('order', [list, by_name, mixed, lambda all_: all_[::-1]])
def test_an_archive_that_was_packed_anew(tmp_path, sizes, order):
    tensors = of_sizes(*sizes)
    torch.save(tensors, tmp_path / 'a')
    packed_anew(tmp_path / 'a', tmp_path / 'b', order)
    check_reads(tmp_path / 'a', tensors)
    check_reads(tmp_path / 'b', tensors)


def test_records_that_were_replaced_or_added(tmp_path):
    """As `zip --update` leaves them."""
    tensors = of_sizes(5, 7, 3)
    torch.save(tensors, tmp_path / 'a')
    with zipfile.ZipFile(tmp_path / 'a') as old:
        folder = old.namelist()[0].split('/')[0]
    with zipfile.ZipFile(tmp_path / 'a', 'a') as archive:
        archive.writestr(f'{folder}/note', b'x' * 1000)
    check_reads(tmp_path / 'a', tensors)


def test_views_of_one_storage(tmp_path):
    whole = torch.arange(20.)
    tensors = {'a': whole[3:9], 'b': torch.ones(4), 'c': whole[10:]}
    torch.save(tensors, tmp_path / 'a')
    packed_anew(tmp_path / 'a', tmp_path / 'b')
    check_reads(tmp_path / 'a', tensors)
    check_reads(tmp_path / 'b', tensors)


def test_a_storage_that_is_shorter_than_its_tensor_is_refused(tmp_path):
    torch.save(of_sizes(5, 7, 3), tmp_path / 'a')
    with (zipfile.ZipFile(tmp_path / 'a') as old,
          zipfile.ZipFile(tmp_path / 'b', 'w') as new):
        for record in old.infolist():
            data = old.read(record)
            new.writestr(record.filename, data[:-4] if
                         record.filename.endswith('data/1') else data)
    module = on_meta(of_sizes(5, 7, 3))
    with pytest.raises(ValueError, match="b: 't1'"):
        terrace.offload(module, checkpoint=tmp_path / 'b')
    assert all(p.is_meta for p in module.parameters())


def matrix():
    return torch.arange(8.).view(4, 2)


def quantized():
    return torch.quantize_per_tensor(matrix(), 0.1, 0, torch.qint8)


def of_four_bits():
    return torch.zeros(4, 2, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)


BESIDE = {
    'meta': ({'w': torch.empty(4, 2, device='meta')}, "'w' .*meta"),
    'quantized': ({'w': quantized()}, 'quantized tensor'),
    'four bits': ({'w': of_four_bits()}, "w.*float4_e2m1fn_x2"),
    'number as name': ({'w': matrix(), 3: torch.ones(1)}, 'key 3'),
    'sparse': ({'w': matrix().to_sparse()}, "'w' is (sparse_coo|not contiguous)")}


@pytest.mark.parametrize('door', ['offload', 'import_torch'])
@pytest.mark.parametrize('kind', BESIDE)
@pytest.mark.parametrize('within', [False, True])
def test_what_no_plain_parameter_can_take(tmp_path, door, kind, within):
    tensors, text = BESIDE[kind]
    tensors = {'a': torch.ones(3), **tensors}
    torch.save({'model': tensors} if within else tensors, tmp_path / 'f')
    own = {'a': torch.zeros(3), 'w': torch.zeros(4, 2)}
    module = on_meta(own) if door == 'offload' else in_memory(own)
    with torch.no_grad():
        module.a.zero_()
    with pytest.raises(ValueError, match=f'(?s)^terrace: {tmp_path}.*({text})'):
        if door == 'offload':
            terrace.offload(module, checkpoint=tmp_path / 'f')
        else:
            terrace.import_torch(tmp_path / 'f', module)
    if door == 'offload':
        assert all(p.is_meta for p in module.parameters())
    else:
        assert not module.a.any()


@pytest.mark.parametrize('protocol', [4, 5])
def test_a_pickle_of_another_protocol(tmp_path, protocol):
    torch.save(of_sizes(3), tmp_path / 'f', pickle_protocol=protocol)
    for door in (lambda: terrace.offload(on_meta(of_sizes(3)),
                                         checkpoint=tmp_path / 'f'),
                 lambda: terrace.import_torch(tmp_path / 'f',
                                              in_memory(of_sizes(3)))):
        with pytest.raises(ValueError, match=f'{tmp_path}/f .*pickle_protocol'):
            door()
    # What the message says helps.
    torch.save(torch.load(tmp_path / 'f', weights_only=False), tmp_path / 'g')
    check_reads(tmp_path / 'g', of_sizes(3))


@pytest.mark.parametrize('convert', ['to_sparse', 'to_sparse_csr', 'quantized',
                                     'conj'])
@pytest.mark.filterwarnings('ignore')
def test_a_models_own_sparse_and_quantized_buffers(tmp_path, convert):
    def make(scale):
        module = torch.nn.Linear(2, 2)
        plain = torch.eye(3) * scale
        buffer = {'quantized': lambda: torch.quantize_per_tensor(
                      plain, 0.1, 0, torch.qint8),
                  'conj': lambda: (plain * 1j).conj()}.get(
                      convert, lambda: getattr(plain, convert)())
        module.register_buffer('b', buffer())
        return module

    def dense(tensor):
        return (tensor.dequantize() if tensor.is_quantized else
                tensor.to_dense() if tensor.layout != torch.strided else
                tensor)

    source, target = make(3), make(5)
    torch.save(source.state_dict(), tmp_path / 'f')
    terrace.import_torch(tmp_path / 'f', target)
    assert torch.equal(dense(target.b), dense(source.b))
    assert torch.equal(target.weight, source.weight)


def test_an_archive_that_was_compressed_is_imported(tmp_path):
    tensors = of_sizes(5, 7, 300)
    torch.save(tensors, tmp_path / 'a')
    with (zipfile.ZipFile(tmp_path / 'a') as old,
          zipfile.ZipFile(tmp_path / 'b', 'w', zipfile.ZIP_DEFLATED) as new):
        for record in old.infolist():
            new.writestr(record.filename, old.read(record))
    module = in_memory(tensors)
    terrace.import_torch(tmp_path / 'b', module)
    for name, value in tensors.items():
        assert torch.equal(getattr(module, name), value), name
