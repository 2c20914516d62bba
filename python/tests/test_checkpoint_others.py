"""What terrace.save writes of tensors that are not plain and of what modules
have beside tensors, and who reads it."""

import argparse
import io

import pytest
import torch

import terrace
from terrace._state.compiled import Compiled

OPAQUE = [torch.float4_e2m1fn_x2, torch.bits8, torch.bits1x8, torch.bits2x4,
          torch.bits4x2, torch.bits16]
SHAPES = [(3, 4), (), (0, 2), (1,)]


def bits(tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).tolist()


def of_dtype(dtype, seed, shape):
    generator = torch.Generator().manual_seed(seed)
    count = torch.Size(shape).numel() * dtype.itemsize
    raw = torch.randint(0, 256, (count,), generator=generator,
                        dtype=torch.uint8)
    return raw.view(dtype).view(shape)


class Opaque(torch.nn.Module):
    def __init__(self, dtype, seed):
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)
        for i, shape in enumerate(SHAPES):
            tensor = of_dtype(dtype, seed, shape)
            self.register_buffer(f'b{i}', tensor)
            self.register_parameter(f'p{i}', torch.nn.Parameter(
                tensor.clone(), requires_grad=False))
        self.register_buffer('turned', of_dtype(dtype, seed, (3, 4)).t())


class Lazy(torch.nn.Module):
    """Buffers of which memory has the conjugate, or the negative."""

    def __init__(self, dtype, seed):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        whole = torch.randn(3, 4, dtype=torch.complex64,
                            generator=generator).to(dtype)
        self.register_buffer('conjugate', whole.clone().conj())
        self.register_buffer('negative', whole.clone().conj().imag)
        self.register_buffer('turned', whole.clone().conj().t())
        self.register_buffer('scalar', whole.clone().conj()[0, 0])


def check_same(one, other):
    for name, value in one.state_dict().items():
        found = other.state_dict()[name]
        assert found.dtype == value.dtype and found.shape == value.shape
        assert bits(found.resolve_conj().resolve_neg()) == bits(
            value.resolve_conj().resolve_neg()), name


MAKERS = [*((Opaque, dtype) for dtype in OPAQUE),
          (Lazy, torch.complex64), (Lazy, torch.complex128)]


@pytest.mark.parametrize('kind, dtype', MAKERS)
def test_what_save_wrote_is_read(tmp_path, kind, dtype):
    saved = kind(dtype, 1)
    terrace.save(tmp_path / 'c', saved)
    bare = kind(dtype, 2).to('meta')
    with terrace.offload(bare, checkpoint=tmp_path / 'c'):
        check_same(saved, bare)


@pytest.mark.parametrize('kind, dtype', MAKERS)
def test_load_reads_it_too(tmp_path, kind, dtype):
    saved, loaded = kind(dtype, 1), kind(dtype, 2)
    flags = [(b.is_conj(), b.is_neg()) for b in loaded.buffers()]
    terrace.save(tmp_path / 'c', saved)
    terrace.load(tmp_path / 'c', loaded)
    check_same(saved, loaded)
    assert flags == [(b.is_conj(), b.is_neg()) for b in loaded.buffers()]


def test_plain_and_lazy_ones_are_of_one_kind(tmp_path):
    saved, plain = Lazy(torch.complex64, 1), Lazy(torch.complex64, 2)
    for name, buffer in plain.named_buffers():
        setattr(plain, name, buffer.resolve_conj().resolve_neg())
    terrace.save(tmp_path / 'c', saved)
    terrace.load(tmp_path / 'c', plain)
    check_same(saved, plain)
    again = Lazy(torch.complex64, 3)
    terrace.save(tmp_path / 'd', plain)
    terrace.load(tmp_path / 'd', again)
    check_same(plain, again)


def test_lazy_views_of_one_memory(tmp_path):
    def make(value):
        module, whole = torch.nn.Module(), torch.full((3,), value + 2j)
        module.register_buffer('conjugate', whole.conj())
        module.register_buffer('negative', whole.conj().imag)
        return module

    saved, loaded = make(1), make(5)
    terrace.save(tmp_path / 'c', saved)
    terrace.load(tmp_path / 'c', loaded)
    check_same(saved, loaded)


@pytest.mark.parametrize('kind, dtype', MAKERS)
def test_those_of_before_are_pickled(tmp_path, kind, dtype):
    saved, loaded, rest = kind(dtype, 1), kind(dtype, 2), io.BytesIO()
    named = dict(saved.named_parameters())
    others = {**dict(saved.named_buffers()),
              **{name: value for name, value in named.items()
                 if value.dtype in OPAQUE}}
    streamed = [name for name in named if name not in others]
    torch.save({'layout': 2, 'others': others, 'groups': [],
                'random': torch.get_rng_state(), 'random_of_gpus': [],
                'values': {}, 'objects': {}}, rest)
    Compiled().checkpoint.save(
        str(tmp_path / 'c'), [named[name] for name in streamed], streamed,
        [-1] * len(streamed),
        torch.frombuffer(rest.getbuffer(), dtype=torch.uint8))
    terrace.load(tmp_path / 'c', loaded)
    check_same(saved, loaded)


class Other(torch.nn.Linear):
    def __init__(self, kind):
        super().__init__(2, 2)
        plain = torch.eye(3)
        self.register_buffer('other', {
            'sparse': plain.to_sparse, 'csr': plain.to_sparse_csr,
            'quantized': lambda: torch.quantize_per_tensor(
                plain, 0.1, 0, torch.qint8)}[kind]())


def dense(tensor):
    return tensor.dequantize() if tensor.is_quantized else tensor.to_dense()


def altered(tensor):
    """Of its kind, with other values."""
    if tensor.is_quantized:
        return torch.quantize_per_tensor(dense(tensor) * 2, 0.1, 0, torch.qint8)
    return tensor * 2


@pytest.mark.parametrize('kind', ['sparse', 'csr', 'quantized'])
@pytest.mark.filterwarnings('ignore')
def test_sparse_and_quantized_ones_are_left_to_load(tmp_path, kind):
    saved = Other(kind)
    terrace.save(tmp_path / 'c', saved)
    bare = Other(kind)
    buffer = bare.other
    bare.other = None
    bare.to('meta')
    bare.other = buffer if kind == 'quantized' else buffer.to('meta')
    with pytest.raises(ValueError, match='other.*terrace.load'):
        terrace.offload(bare, checkpoint=tmp_path / 'c')

    def make(model):
        model.other = Other(kind).other

    with terrace.offload(bare, checkpoint=tmp_path / 'c', init_buffers=make):
        with torch.no_grad():
            bare.weight.zero_()
        bare.other = altered(bare.other)
        terrace.load(tmp_path / 'c', bare)
        assert torch.equal(bare.weight, saved.weight)
        assert torch.equal(dense(bare.other), dense(saved.other))


@pytest.mark.parametrize('kind', ['parameter', 'buffer'])
def test_what_has_no_elements_is_not_saved(tmp_path, kind):
    saved, bare = torch.nn.BatchNorm1d(3), torch.nn.BatchNorm1d(3)
    terrace.save(tmp_path / 'c', saved)
    name = 'weight' if kind == 'parameter' else 'running_mean'
    setattr(bare, name, type(getattr(bare, name))(
        getattr(bare, name).detach().to('meta')))
    with pytest.raises(ValueError, match=f"^terrace: '{name}' .*meta device"):
        terrace.save(tmp_path / 'c', bare)
    other = torch.nn.BatchNorm1d(3)
    terrace.load(tmp_path / 'c', other)
    check_same(saved, other)


def of_layout(kind):
    plain = torch.eye(3)
    return {'dense': lambda: plain, 'coo': plain.to_sparse,
            'csr': plain.to_sparse_csr, 'csc': plain.to_sparse_csc,
            'tensor': lambda: torch.quantize_per_tensor(
                plain, 0.1, 0, torch.qint8),
            'channel': lambda: torch.quantize_per_channel(
                plain, torch.ones(3), torch.zeros(3), 0, torch.qint8)}[kind]()


@pytest.mark.parametrize('there, here', [
    ('coo', 'csr'), ('csr', 'csc'), ('coo', 'dense'), ('dense', 'coo'),
    ('tensor', 'channel'), ('channel', 'tensor')])
@pytest.mark.filterwarnings('ignore')
def test_another_layout_is_another_model(tmp_path, there, here):
    saved, loaded = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    saved.register_buffer('b', of_layout(there))
    loaded.register_buffer('b', of_layout(here))
    terrace.save(tmp_path / 'c', saved)
    before = loaded.weight.clone()
    with pytest.raises(ValueError, match="of another model: .*'b'|'b'.*"):
        terrace.load(tmp_path / 'c', loaded)
    assert torch.equal(loaded.weight, before)


class Extra(torch.nn.Linear):
    """Has a state beside its tensors."""

    def __init__(self, extra=None):
        super().__init__(2, 2)
        self.extra = extra

    def get_extra_state(self):
        return self.extra

    def set_extra_state(self, state):
        if state == 'bad':
            raise ValueError('a bad state')
        self.extra = state


def pair(first=None, second=None):
    return torch.nn.Sequential(Extra(first), Extra(second))


def test_extra_states_come_back(tmp_path):
    tensor = torch.arange(3)
    terrace.save(tmp_path / 'c', pair({'n': 7, 'scale': 0.5}, tensor))
    loaded = pair()
    terrace.load(tmp_path / 'c', loaded)
    assert loaded[0].extra == {'n': 7, 'scale': 0.5}
    assert torch.equal(loaded[1].extra, tensor)


def test_an_extra_state_that_cannot_be_read_is_refused(tmp_path):
    terrace.save(tmp_path / 'c', pair(1, 2))
    with pytest.raises(ValueError, match=r"\['1._extra_state'\]\['a'\] is a "
                                         'argparse.Namespace'):
        terrace.save(tmp_path / 'c', pair(3, {'a': argparse.Namespace()}))
    loaded = pair()
    terrace.load(tmp_path / 'c', loaded)
    assert (loaded[0].extra, loaded[1].extra) == (1, 2)


def test_an_extra_state_that_is_not_taken_changes_nothing(tmp_path):
    saved = pair(1, 'bad')
    terrace.save(tmp_path / 'c', saved)
    loaded = pair(5, 6)
    before = loaded[0].weight.clone()
    with pytest.raises(ValueError, match='a bad state'):
        terrace.load(tmp_path / 'c', loaded)
    assert (loaded[0].extra, loaded[1].extra) == (5, 6)
    assert torch.equal(loaded[0].weight, before)


def test_models_that_differ_in_their_extra_states(tmp_path):
    plain = torch.nn.Sequential(Extra(1), torch.nn.Linear(2, 2))
    terrace.save(tmp_path / 'c', plain)
    other = pair(5, 6)
    with pytest.raises(ValueError, match="another model: .*1._extra_state"):
        terrace.load(tmp_path / 'c', other)
    assert other[0].extra == 5
    terrace.save(tmp_path / 'c', other)
    with pytest.raises(ValueError, match="another model: .*1._extra_state"):
        terrace.load(tmp_path / 'c', plain)


@pytest.mark.parametrize('write', [
    terrace.save, lambda path, model: torch.save(model.state_dict(), path)])
def test_weights_alone_are_read_by_checkpoint(tmp_path, write):
    saved = pair(torch.arange(3), 7)
    write(tmp_path / 'c', saved)
    bare = pair(torch.ones(3), 8).to('meta')
    with terrace.offload(bare, checkpoint=tmp_path / 'c'):
        assert torch.equal(bare[1].weight, saved[1].weight)
        assert torch.equal(bare[0].extra, torch.ones(3))
        assert bare[1].extra == 8


def test_a_checkpoint_of_before_leaves_them(tmp_path):
    rest, saved = io.BytesIO(), pair()
    named = dict(saved.named_parameters())
    torch.save({'layout': 2, 'others': {}, 'groups': [],
                'random': torch.get_rng_state(), 'random_of_gpus': [],
                'values': {}, 'objects': {}}, rest)
    Compiled().checkpoint.save(
        str(tmp_path / 'c'), list(named.values()), list(named), [-1] * len(named),
        torch.frombuffer(rest.getbuffer(), dtype=torch.uint8))
    loaded = pair(5, 6)
    terrace.load(tmp_path / 'c', loaded)
    assert (loaded[0].extra, loaded[1].extra) == (5, 6)
    assert torch.equal(loaded[1].weight, saved[1].weight)


class Packed(torch.nn.Linear):
    """Keeps its scales beside its tensors, without an extra state."""

    def __init__(self, scale):
        super().__init__(2, 2)
        self.scale = scale

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + 'scale'] = self.scale


def quantized():
    return torch.ao.quantization.quantize_dynamic(
        torch.nn.Sequential(torch.nn.Linear(4, 4)))


@pytest.mark.filterwarnings('ignore::DeprecationWarning')
@pytest.mark.parametrize('make, name', [
    (quantized, '0.scale'),
    (lambda: torch.nn.Sequential(Packed(torch.ones(2))), '0.scale'),
    (lambda: Packed(0.5), 'scale')])
def test_what_would_be_lost_is_refused(tmp_path, make, name):
    before = torch.nn.Linear(2, 2)
    terrace.save(tmp_path / 'c', before)
    with pytest.raises(ValueError, match=f"terrace: '.*{name}' .*be lost"):
        terrace.save(tmp_path / 'c', make())
    loaded = torch.nn.Linear(2, 2)
    terrace.load(tmp_path / 'c', loaded)
    assert torch.equal(loaded.weight, before.weight)


def test_tensors_by_other_names_are_not_lost(tmp_path):
    """As wrappers call them that take their prefix away, or hooks that make
    views."""
    model = torch.nn.Sequential(Extra(3), torch.nn.Linear(2, 2))
    model.register_buffer('kept', torch.ones(2))

    def rename(module, states, prefix, metadata):
        for name in list(states):
            state = states.pop(name)
            states[f'wrapped.{name}'] = (
                state.view(-1) if 'weight' in name else state)

    model._register_state_dict_hook(rename)
    terrace.save(tmp_path / 'c', model)
    loaded = torch.nn.Sequential(Extra(), torch.nn.Linear(2, 2))
    loaded.register_buffer('kept', torch.zeros(2))
    terrace.load(tmp_path / 'c', loaded)
    assert loaded[0].extra == 3
    assert torch.equal(loaded[1].weight, model[1].weight)
    assert torch.equal(loaded.kept, model.kept)


def test_statistics_within_a_checkpoint_wrapper_come_back(tmp_path):
    """Whose state_dict() has no prefix, and named_buffers() has one."""
    from torch.distributed.algorithms._checkpoint import checkpoint_wrapper

    def make():
        return checkpoint_wrapper.checkpoint_wrapper(torch.nn.Sequential(
            torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)))

    model, loaded = make(), make()
    model(torch.randn(8, 2))
    terrace.save(tmp_path / 'c', model)
    terrace.load(tmp_path / 'c', loaded)
    for name, value in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name
